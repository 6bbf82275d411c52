#pragma once

#include "rollout/reward.hpp"

#include <array>

namespace millrace {

class option_list;

/// What an answer must look like.
enum class answer_shape : std::uint8_t {
  number,   ///< one number and nothing else
  marked,   ///< it marks its answer with "#### …" or \boxed{…}, and the mark isn't empty
  thinking, ///< <think>…</think> first and once, then an answer that isn't empty
};
constexpr std::array<std::string_view, 3> names(answer_shape) {
  return {"number", "marked", "thinking"};
}

struct answer_format {
  float correct = 1;
  float wrong = 0;
  answer_shape shape = answer_shape::marked;
  bool finished = true; ///< it must have ended by itself, not at the token limit
};
void describe(option_list& v, answer_format& o);

/// Judges only the form, not whether the answer is right; usually one part of a weighted reward.
class format_reward final : public reward {
public:
  explicit format_reward(answer_format options) : options_(options) {}
  [[nodiscard]] verdict judge(const prompt& question, std::string_view answer,
                              finish_reason finish) const override;

private:
  answer_format options_;
};

} // namespace millrace
