#pragma once

#include "policy_loss/aggregate.hpp"
#include "policy_loss/batch.hpp"
#include "policy_loss/kl.hpp"
#include "policy_loss/loss.hpp"

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace millrace::policy_loss {

/// A statistic still on the device.
struct device_statistic {
  std::string name;
  at::Tensor value;  ///< 0-d fp64
  at::Tensor weight; ///< 0-d fp64
  merge_rule rule = merge_rule::mean;
};

/// What a method says about each token; everything else is common to all of them. Tensors are [N].
struct term {
  at::Tensor value;  ///< loss, differentiable; masks and aggregation come later
  at::Tensor weight; ///< the constant factor in it; undefined: 1
  at::Tensor keep;   ///< bool, the method's own mask; undefined: all
  /// bool, by the sign of the advantage; undefined: the method doesn't clip.
  at::Tensor clipped_high, clipped_low, dual_clipped;
  bool clipped_has_gradient = false; ///< a clipped token stays active
  at::Tensor log_r1;                 ///< log θ/prox where the method forms it, for statistics
  /// Statistics that are means of a per-token value over valid tokens.
  std::vector<std::pair<std::string, at::Tensor>> token_means;
  std::vector<device_statistic> scalars;
  std::map<std::string, at::Tensor> named_tokens;    ///< [N], for outputs::named
  std::map<std::string, at::Tensor> named_sequences; ///< [S], the same
};

/// Base of losses that are a sum of per-token terms: flattening, sanitising, KL, masks, aggregation
/// and statistics are here, so that a method's file holds its equation and nothing else. Common
/// parameters: agg, denominator, fixed_length, nonfinite, log_ratio_clamp, kl_beta, kl_estimator.
class token_loss : public loss {
public:
  token_loss(std::string name, param_reader& params);

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] requirements needs() const override;
  [[nodiscard]] outputs compute(const inputs& in) const final;

protected:
  /// The method's equation, per token.
  [[nodiscard]] virtual term evaluate(batch& b) const = 0;

  /// What the method itself reads; needs() adds what the common parameters do.
  [[nodiscard]] virtual requirements method_needs() const = 0;

private:
  std::string name_;
  aggregate_options aggregate_;
  nonfinite_rule nonfinite_ = nonfinite_rule::drop;
  double log_ratio_clamp_ = 0;
  double kl_beta_ = 0;
  kl_estimator kl_ = kl_estimator::k3;
};

/// Shared by ppo_value_clip: reads `nonfinite`.
nonfinite_rule read_nonfinite(param_reader& params);

/// Brings device statistics to the host in one transfer.
statistics collect(const std::vector<device_statistic>& made);

} // namespace millrace::policy_loss
