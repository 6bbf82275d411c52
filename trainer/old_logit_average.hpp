#pragma once

#include "policy_loss/reference/ewma.hpp"
#include "runtime/config/settings.hpp"
#include "runtime/model/transformer.hpp"
#include "runtime/tensor_view.hpp"

#include <nlohmann/json.hpp>

#include <vector>

namespace millrace::trainer {

struct kept_shares;

/// PPO-EWMA's proximal policy: an exponential average of the parameters over versions, which starts
/// anew when the loss keeps too little; with a network that computes with it.
class old_logit_average {
public:
  old_logit_average(const ewma_settings& s, const model::transformer& network);

  /// Takes in θ after a step. Returns whether the average was reset.
  bool after_step(const model::transformer& theta, const kept_shares& shares);

  [[nodiscard]] const model::transformer& network() const { return network_; }
  [[nodiscard]] std::int64_t bytes() const;

  // For checkpoints, as old_logits.
  [[nodiscard]] std::vector<tensor_view> tensors() const;
  [[nodiscard]] nlohmann::json state() const;
  void restore(const nlohmann::json& state);

private:
  policy_loss::ewma average_;
  policy_loss::ewma_auto_reset reset_;
  model::transformer network_;
};

} // namespace millrace::trainer
