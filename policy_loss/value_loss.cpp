#include "policy_loss/value_loss.hpp"

#include "policy_loss/token_loss.hpp"
#include "runtime/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

namespace millrace::policy_loss {

outputs ppo_value_clip(const value_inputs& in, const nlohmann::json& params,
                       std::string_view where) {
  param_reader reader{params, where};
  auto eps =
    reader.maybe_number("eps", non_negative, "the value may move this far; absent: no clip");
  auto options = aggregate_options::read(reader);
  auto nonfinite = read_nonfinite(reader);
  reader.finish();
  if (!in.values.defined() || !in.returns.defined() || (eps && !in.old_values.defined()))
    throw user_error("the critic's loss needs values, returns and (for eps) old_values");

  layout tokens{in.values, in.cu_seqlens};
  auto mask = flat_mask(tokens, in.mask, in.values);
  auto values = tokens.flat(in.values, at::kDouble, "values");
  auto returns = tokens.flat(in.returns.detach(), at::kDouble, "returns");
  auto usable = at::isfinite(values).logical_and(at::isfinite(returns));
  auto old = eps ? tokens.flat(in.old_values.detach(), at::kDouble, "old_values") : at::Tensor{};
  if (eps)
    usable = usable.logical_and(at::isfinite(old));
  usable = usable.logical_and(mask);

  auto error = at::where(usable, values - returns, 0.0);
  auto squared = error.square();
  auto clipped = usable.logical_not().logical_and(usable);
  if (eps) {
    auto moved = at::where(usable, values - old, 0.0);
    auto clipped_error = at::where(usable, old + moved.clamp(-*eps, *eps) - returns, 0.0);
    // Where the clipped error is larger the value has moved too far: constant, no gradient.
    clipped = clipped_error.abs().gt(error.abs()).logical_and(moved.abs().gt(*eps));
    squared = at::where(clipped, clipped_error.detach().square(), squared);
  }
  auto keep = nonfinite == nonfinite_rule::drop ? usable : mask;
  auto local = count_on_device(tokens, mask, keep);
  outputs out;
  out.loss = aggregate(options, tokens, squared / 2, keep, local, in.global);

  at::NoGradGuard no_grad;
  out.weight = tokens.restored(keep.to(at::kDouble));
  out.keep = tokens.restored(keep);
  out.active = tokens.restored(keep.logical_and(clipped.logical_not()));
  auto mean = [&](const char* name, const at::Tensor& per_token) {
    return device_statistic{name, per_token.to(at::kDouble).sum() / local.tokens.clamp_min(1),
                            local.tokens, merge_rule::mean};
  };
  out.stats = collect({mean("value_clip_frac", clipped), mean("value_error_sq", error.square()),
                       {"nonfinite", mask.logical_and(usable.logical_not()).sum().to(at::kDouble),
                        local.tokens, merge_rule::sum},
                       {"tokens", local.tokens, local.tokens, merge_rule::sum},
                       {"sequences", local.sequences, local.sequences, merge_rule::sum},
                       {"kept_tokens", local.kept_tokens, local.tokens, merge_rule::sum},
                       {"kept_sequences", local.kept_sequences, local.tokens, merge_rule::sum}});
  auto count = [&](const char* name) { return static_cast<std::int64_t>(out.stats.get(name)); };
  out.local = {count("tokens"), count("sequences"), tokens.sequences(), count("kept_tokens"),
               count("kept_sequences")};
  return out;
}

} // namespace millrace::policy_loss
