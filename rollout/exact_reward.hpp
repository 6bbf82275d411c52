#pragma once

#include "rollout/reward.hpp"

namespace millrace {

class option_list;

struct exact_options {
  float correct = 1;
  float wrong = 0;
  bool trim = true;         ///< spaces and line ends around both texts don't matter
  bool ignore_case = false; ///< of the letters A to Z; others must be equal
  bool marked = false;      ///< compares what "####" or \boxed{…} marks, where something is marked
};
void describe(option_list& v, exact_options& o);

/// The answer must be the reference, byte by byte.
class exact_reward final : public reward {
public:
  explicit exact_reward(exact_options options) : options_(options) {}
  [[nodiscard]] verdict judge(const prompt& question, std::string_view answer,
                              finish_reason finish) const override;

private:
  [[nodiscard]] std::string_view compared(std::string_view text) const;

  exact_options options_;
};

} // namespace millrace
