#include "rollout/format_reward.hpp"

#include "rollout/final_answer.hpp"
#include "rollout/number.hpp"
#include "runtime/config/options.hpp"

namespace millrace {

namespace {

/// All of the text is one number, but for the spaces around it.
bool is_number(std::string_view text) {
  constexpr std::string_view parts = "0123456789+-.,/%$ ";
  text = trimmed(text);
  if (text.find_first_not_of(parts) != std::string_view::npos)
    return false;
  number_scanner scan(text);
  return scan.next() && !scan.next();
}

bool is_thinking(std::string_view text) {
  constexpr std::string_view open = "<think>", close = "</think>";
  text = trimmed(text);
  if (text.substr(0, open.size()) != open || text.find(open, 1) != std::string_view::npos)
    return false;
  const auto end = text.find(close);
  if (end == std::string_view::npos || text.find(close, end + 1) != std::string_view::npos)
    return false;
  return !trimmed(text.substr(end + close.size())).empty();
}

bool has_shape(std::string_view text, answer_shape shape) {
  if (shape == answer_shape::number)
    return is_number(text);
  if (shape == answer_shape::thinking)
    return is_thinking(text);
  const auto marked = marked_answer(text);
  return marked && !marked->empty();
}

} // namespace

void describe(option_list& v, answer_format& o) {
  v("correct", o.correct, any_number(), "What an answer of the right form is paid");
  v("wrong", o.wrong, any_number(), "What another is paid");
  v("shape", o.shape,
    "number: one number and nothing else; marked: \"#### …\" or \\boxed{…}; thinking: "
    "<think>…</think>, then an answer");
  v("finished", o.finished, "Whether it must end by itself, not at the token limit");
}

verdict format_reward::judge(const prompt&, std::string_view answer, finish_reason finish) const {
  if (options_.finished && finish != finish_reason::stop)
    return {options_.wrong, false, true, "not finished"};
  const bool right = has_shape(answer, options_.shape);
  const auto shape = std::string(names(options_.shape)[static_cast<std::size_t>(options_.shape)]);
  return {right ? options_.correct : options_.wrong, right, true,
          (right ? "of the form " : "not of the form ") + shape};
}

} // namespace millrace
