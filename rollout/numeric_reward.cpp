#include "rollout/numeric_reward.hpp"

#include "rollout/final_answer.hpp"
#include "rollout/number.hpp"
#include "runtime/config/options.hpp"

namespace millrace {

namespace {

std::optional<number> answered_number(std::string_view text) {
  const auto marked = marked_answer(text);
  if (!marked)
    return last_number(text);
  number_scanner scan(*marked);
  auto n = scan.next();
  if (scan.next())
    return {}; // "\boxed{3, 4}" is no number
  return n;
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
  const auto expected = answered_number(question.answer);
  if (!expected)
    return {options_.wrong, false, false,
            "the reference answer \"" + question.answer + "\" has no number to compare with"};
  if (options_.finished && finish != finish_reason::stop)
    return {options_.wrong, false, true, "not finished"};
  const auto found = answered_number(answer);
  if (!found)
    return {options_.wrong, false, true, "no number, expected " + to_string(*expected)};
  const bool right = same_number(*found, *expected, options_.tolerance);
  return {right ? options_.correct : options_.wrong, right, true,
          "found " + to_string(*found) + ", expected " + to_string(*expected)};
}

} // namespace millrace
