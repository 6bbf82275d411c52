#pragma once

#include "rollout/reward.hpp"

namespace millrace {

class option_list;

struct weighted_part {
  std::string kind;
  float weight = 1;
  nlohmann::json params = nlohmann::json::object();
};
void describe(option_list& v, weighted_part& o);

struct weighted_options {
  std::vector<weighted_part> parts;
};
void describe(option_list& v, weighted_options& o);

/// The sum of several rewards, each times its weight:
///   {"parts": [{"kind": "numeric", "weight": 1},
///              {"kind": "format", "weight": 0.1, "params": {"shape": "marked"}}]}
/// The answer is correct when it is so for the first part. It is judged when all could judge it.
class weighted_reward final : public reward {
public:
  struct part {
    std::unique_ptr<reward> judge;
    float weight = 1;
  };
  explicit weighted_reward(std::vector<part> parts);
  /// \throws user_error
  static std::unique_ptr<reward> make(const nlohmann::json& params, const std::string& where);

  [[nodiscard]] verdict judge(const prompt& question, std::string_view answer,
                              finish_reason finish) const override;

private:
  std::vector<part> parts_;
};

} // namespace millrace
