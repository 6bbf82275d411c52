#pragma once

#include "rollout/reward.hpp"

namespace millrace {

class option_list;

struct numeric_options {
  float correct = 1;
  float wrong = 0;
  /// Of numbers that are not whole, relative above 1 and absolute below. Whole ones must be equal.
  double tolerance = 1e-6;
  bool finished = false; ///< an answer that was cut at the token limit is wrong
};
void describe(option_list& v, numeric_options& o);

/// Compares the answer's number with the reference's. The answer's is the one that it marks with
/// "#### N" or \boxed{N} (which must hold one number and no second), and the last number in it
/// where it marks none. The reference's is found in the same way; it need not be marked where it is
/// nothing else. A reference that is no number, such as (1,3) or 3\sqrt{2}, is compared as text, in
/// plain_form(). Where there is no reference the verdict is not `judged`.
class numeric_reward final : public reward {
public:
  explicit numeric_reward(numeric_options options) : options_(options) {}
  [[nodiscard]] verdict judge(const prompt& question, std::string_view answer,
                              finish_reason finish) const override;

private:
  numeric_options options_;
};

} // namespace millrace
