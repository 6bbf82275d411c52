#include "rollout/numeric_reward.hpp"

#include "rollout/answer_form.hpp"
#include "rollout/final_answer.hpp"
#include "rollout/number.hpp"
#include "runtime/config/options.hpp"

#include <cctype>

namespace millrace {

namespace {

/// Sentences, rather than an answer alone.
bool is_prose(std::string_view text) {
  int words = 0;
  std::size_t letters = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && std::isalpha(static_cast<unsigned char>(text[i])) != 0) {
      ++letters;
      continue;
    }
    words += letters >= 2 && (i == letters || text[i - letters - 1] != '\\') ? 1 : 0;
    letters = 0;
  }
  return words >= 3;
}

/// Of an answer, or of the reference: what it marks as its answer counts, else the last number.
std::optional<number> answered_number(std::string_view text) {
  const auto marked = marked_answer(text);
  return marked ? only_number(*marked) : last_number(text);
}

/// The reference's number: it need not be marked, when it is nothing else.
std::optional<number> expected_number(std::string_view reference) {
  if (!marked_answer(reference) && !is_prose(reference))
    return only_number(reference);
  return answered_number(reference);
}

} // namespace

void describe(option_list& v, numeric_options& o) {
  v("correct", o.correct, any_number(), "What a right answer is paid");
  v("wrong", o.wrong, any_number(), "What a wrong answer is paid");
  v("tolerance", o.tolerance, at_least(0),
    "How far numbers that are not whole may be apart: relative above 1, absolute below");
  v("finished", o.finished, "Whether an answer cut at the token limit counts as wrong");
}

verdict numeric_reward::judge(const prompt& question, std::string_view answer,
                              finish_reason finish) const {
  if (trimmed(question.answer).empty())
    return {options_.wrong, false, false, "there is no reference answer to compare with"};
  if (options_.finished && finish != finish_reason::stop)
    return {options_.wrong, false, true, "not finished"};
  const auto expected = expected_number(question.answer);
  if (!expected) { // (1,3), 2x-5, Monday: by what is written
    const auto wanted = plain_form(marked_answer(question.answer).value_or(question.answer));
    const auto written = plain_form(marked_answer(answer).value_or(answer));
    return {written == wanted ? options_.correct : options_.wrong, written == wanted, true,
            "expected, as text, " + wanted};
  }
  const auto found = answered_number(answer);
  if (!found)
    return {options_.wrong, false, true, "no number, expected " + to_string(*expected)};
  const bool right = same_number(*found, *expected, options_.tolerance);
  return {right ? options_.correct : options_.wrong, right, true,
          "found " + to_string(*found) + ", expected " + to_string(*expected)};
}

} // namespace millrace
