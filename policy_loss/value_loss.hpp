#pragma once

#include "policy_loss/loss.hpp"

namespace millrace::policy_loss {

/// A critic's loss with PPO's clipping of the value,
///   ½·max((V − R)², (clip(V, V_old − eps, V_old + eps) − R)²),
/// aggregated as a policy loss (parameters eps, agg, fixed_length, denominator, nonfinite).
struct value_inputs {
  at::Tensor values;     ///< per token, carries gradient
  at::Tensor old_values; ///< per token, the critic's at the start of the step
  at::Tensor returns;    ///< per token
  at::Tensor mask;
  std::vector<std::int32_t> cu_seqlens;
  std::optional<counts> global;
};

/// @throws millrace::user_error for unknown or ill-typed parameters
outputs ppo_value_clip(const value_inputs& in, const nlohmann::json& params,
                       std::string_view where = "algorithm.critic");

} // namespace millrace::policy_loss
