#pragma once

#include "policy_loss/layout.hpp"
#include "policy_loss/loss.hpp"
#include "policy_loss/params.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace millrace::policy_loss {

/// How per-token losses become one number.
enum class aggregation : std::uint8_t {
  token_mean,          ///< Σ/N over valid tokens (DAPO)
  seq_mean_token_mean, ///< mean over sequences of the mean over tokens (GRPO)
  seq_mean_token_sum,  ///< mean over sequences of the sum over tokens
  fixed_length,        ///< Σ/(B·L), empty sequences counted (Dr. GRPO)
  sum_over_const       ///< Σ/L
};

/// What counts below the fraction bar when tokens were masked away by the loss.
enum class denominator_rule : std::uint8_t {
  original,   ///< all valid tokens and sequences
  kept,       ///< the tokens, and the sequences with tokens, that are left
  roll_hybrid ///< kept tokens within a sequence, original sequences (ROLL)
};

struct aggregate_options {
  aggregation how = aggregation::token_mean;
  denominator_rule denominator = denominator_rule::original;
  double length = 0; ///< L of fixed_length and sum_over_const

  /// Reads agg, denominator and fixed_length.
  static aggregate_options read(param_reader& params);

  /// Whether a part of a batch needs global kept counts (evaluate once without to learn them).
  [[nodiscard]] bool needs_kept_counts() const;

  /// Whether it must not be given part of a sequence.
  [[nodiscard]] bool needs_whole_sequences() const;
};

/// Token and sequence counts on the device (0-d fp64), so that no transfer stalls the graph.
struct device_counts {
  at::Tensor tokens, sequences, kept_tokens, kept_sequences;
  at::Tensor lengths, kept_lengths; ///< [S]
};
device_counts count_on_device(const layout& where, const at::Tensor& mask, const at::Tensor& keep);

/// The aggregated loss (0-d, differentiable) of per-token `values` [N]; tokens outside `keep`
/// contribute nothing, whatever they hold. No tokens: 0.
/// @param global counts over all parts of the batch; absent: this is the whole
/// @throws millrace::invariant_error when kept counts are needed and `global` lacks them
at::Tensor aggregate(const aggregate_options& options, const layout& where,
                     const at::Tensor& values, const at::Tensor& keep, const device_counts& local,
                     const std::optional<counts>& global);

} // namespace millrace::policy_loss
