#include "policy_loss/aggregate.hpp"

#include "runtime/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

namespace millrace::policy_loss {

aggregate_options aggregate_options::read(param_reader& params) {
  aggregate_options result;
  result.how = static_cast<aggregation>(params.choice(
    "agg",
    {"token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "fixed_length", "sum_over_const"},
    0, "how per-token losses become one number"));
  result.denominator = static_cast<denominator_rule>(
    params.choice("denominator", {"original", "kept", "roll_hybrid"}, 0,
                  "what is divided by when the loss masks tokens away"));
  auto length =
    params.maybe_number("fixed_length", {1e-300, 1e300},
                        "L of agg = fixed_length, sum / (B·L), and sum_over_const, sum / L");
  auto has_length = result.how == aggregation::fixed_length
                    || result.how == aggregation::sum_over_const;
  if (has_length && !length)
    params.refuse("fixed_length",
                  "the length L that agg divides by, e.g. the longest answer allowed");
  result.length = length.value_or(0);
  return result;
}

bool aggregate_options::needs_kept_counts() const {
  switch (how) {
    case aggregation::token_mean: return denominator != denominator_rule::original;
    case aggregation::seq_mean_token_mean:
    case aggregation::seq_mean_token_sum: return denominator == denominator_rule::kept;
    default: return false;
  }
}

bool aggregate_options::needs_whole_sequences() const {
  return how == aggregation::seq_mean_token_mean || how == aggregation::seq_mean_token_sum;
}

device_counts count_on_device(const layout& where, const at::Tensor& mask, const at::Tensor& keep) {
  device_counts result;
  result.lengths = where.sum(mask.to(at::kDouble));
  result.kept_lengths = where.sum(keep.to(at::kDouble));
  result.tokens = result.lengths.sum();
  result.kept_tokens = result.kept_lengths.sum();
  result.sequences = result.lengths.gt(0).sum().to(at::kDouble);
  result.kept_sequences = result.kept_lengths.gt(0).sum().to(at::kDouble);
  return result;
}

namespace {

at::Tensor global_or(const std::optional<counts>& global, std::optional<std::int64_t> counts::*kept,
                     const at::Tensor& local) {
  if (!global)
    return local;
  const auto& known = (*global).*kept;
  ensure(known.has_value(), "global counts lack the kept ones, which the denominator needs");
  return at::scalar_tensor(static_cast<double>(*known), local.options());
}

at::Tensor global_or(const std::optional<counts>& global, std::int64_t counts::* original,
                     const at::Tensor& local) {
  return global ? at::scalar_tensor(static_cast<double>((*global).*original), local.options())
                : local;
}

} // namespace

at::Tensor aggregate(const aggregate_options& options, const layout& where,
                     const at::Tensor& values, const at::Tensor& keep, const device_counts& local,
                     const std::optional<counts>& global) {
  auto numerator = at::where(keep, values, 0.0);
  auto by_kept = options.denominator != denominator_rule::original;
  auto tokens = [&] {
    return by_kept ? global_or(global, &counts::kept_tokens, local.kept_tokens)
                   : global_or(global, &counts::tokens, local.tokens);
  };
  auto sequences = [&] {
    return options.denominator == denominator_rule::kept
             ? global_or(global, &counts::kept_sequences, local.kept_sequences)
             : global_or(global, &counts::sequences, local.sequences);
  };
  switch (options.how) {
    case aggregation::token_mean: return numerator.sum() / tokens().clamp_min(1);
    case aggregation::seq_mean_token_mean: {
      const auto& lengths = by_kept ? local.kept_lengths : local.lengths;
      return (where.sum(numerator) / lengths.clamp_min(1)).sum() / sequences().clamp_min(1);
    }
    case aggregation::seq_mean_token_sum: return numerator.sum() / sequences().clamp_min(1);
    case aggregation::fixed_length: {
      auto batch = static_cast<double>(global ? global->batch : where.sequences());
      return numerator.sum() / (std::max(batch, 1.0) * options.length);
    }
    case aggregation::sum_over_const: break;
  }
  return numerator.sum() / options.length;
}

} // namespace millrace::policy_loss
