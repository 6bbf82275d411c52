#include "rollout/exact_reward.hpp"

#include "rollout/final_answer.hpp"
#include "runtime/config/options.hpp"

#include <algorithm>

namespace millrace {

void describe(option_list& v, exact_options& o) {
  v("correct", o.correct, any_number(), "What a right answer is paid");
  v("wrong", o.wrong, any_number(), "What a wrong answer is paid");
  v("trim", o.trim, "Whether spaces and line ends around the texts don't matter");
  v("ignore_case", o.ignore_case, "Whether A and a are the same, for the letters A to Z");
  v("marked", o.marked,
    "Whether only what \"####\" or \\boxed{} marks is compared, where something is marked");
}

std::string_view exact_reward::compared(std::string_view text) const {
  if (options_.marked)
    if (auto marked = marked_answer(text))
      return *marked;
  return options_.trim ? trimmed(text) : text;
}

verdict exact_reward::judge(const prompt& question, std::string_view answer, finish_reason) const {
  auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  auto same = [&](char a, char b) { return options_.ignore_case ? lower(a) == lower(b) : a == b; };
  const auto found = compared(answer);
  const auto expected = compared(question.answer);
  const bool right = std::equal(found.begin(), found.end(), expected.begin(), expected.end(), same);
  return {right ? options_.correct : options_.wrong, right, true, right ? "equal" : "not equal"};
}

} // namespace millrace
