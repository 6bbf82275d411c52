#pragma once

#include "policy_loss/kl.hpp"
#include "policy_loss/registry.hpp"

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::policy_loss {

/// What an advantage estimator may look at. Nothing carries gradient. Per-token tensors are packed
/// ([N] with `cu_seqlens`) or padded ([B, T]), as in policy_loss::inputs; S sequences.
struct advantage_inputs {
  at::Tensor rewards;       ///< [S], the outcome of each sequence
  at::Tensor group_ids;     ///< [S] i64: sequences that answer the same prompt share one
  at::Tensor token_rewards; ///< per token; undefined: `rewards`, put on each last valid token
  at::Tensor values;        ///< per token, the critic's (gae, vtrace)
  at::Tensor log_ratio;     ///< per token log θ/μ (vtrace)
  at::Tensor mask;          ///< per token, bool or 0/1. Undefined: all valid
  std::vector<std::int32_t> cu_seqlens;
};

/// fp64, on the device of the rewards.
struct advantage_outputs {
  /// Per token in the layout of the mask (0 outside it); [S] where no per-token input was given.
  at::Tensor advantages;
  at::Tensor returns; ///< per token, the critic's target; undefined for group estimators
  /// More by name, e.g. `advantages_verl`, `vs`.
  std::map<std::string, at::Tensor> named;
};

struct advantage_requirements {
  bool groups = false;        ///< rewards and group_ids
  bool values = false;        ///< a critic
  bool log_ratio = false;     ///< log θ/μ
  bool batch_whole = false;   ///< normalises over the batch: give it all sequences of all ranks
  int smallest_group = 1;     ///< below this size a group has no signal (advantage 0)
};

/// An advantage estimator, configured. Pure.
class advantage {
public:
  virtual ~advantage() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual advantage_requirements needs() const = 0;

  /// @throws millrace::user_error when an input that it needs is undefined
  /// @throws millrace::invariant_error when layouts or sizes disagree
  [[nodiscard]] virtual advantage_outputs compute(const advantage_inputs& in) const = 0;
};

using advantage_registry = registry<advantage>;

/// grpo, mean_baseline, rloo, reinforce_plus_plus, reinforce_plus_plus_baseline, gae, vtrace.
const advantage_registry& builtin_advantages();

/// @throws millrace::user_error as make_loss()
std::unique_ptr<advantage> make_advantage(std::string_view name, const nlohmann::json& params,
                                          const advantage_registry& known = builtin_advantages(),
                                          std::string_view where = "algorithm.advantage");

/// KL as part of the reward (InstructGPT 2203.02155, eq. 2): each valid token gets −coef·k(μ‖ref),
/// the last valid one of a sequence its outcome as well.
struct kl_reward_options {
  double coefficient = 0.1;
  kl_estimator estimator = kl_estimator::k1; ///< of x = log μ − log ref
  double log_ratio_clamp = 0; ///< 0: none
};
struct kl_reward_outputs {
  at::Tensor token_rewards; ///< per token, 0 outside the mask
  at::Tensor k1, k2, k3;    ///< per token, 0 outside the mask and where x is not finite
};
kl_reward_outputs kl_reward(const at::Tensor& logp_behav, const at::Tensor& logp_ref,
                            const advantage_inputs& in, const kl_reward_options& options);

} // namespace millrace::policy_loss
