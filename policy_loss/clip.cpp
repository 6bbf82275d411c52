#include "policy_loss/clip.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>

namespace millrace::policy_loss {

clip_options clip_options::read(param_reader& params) {
  auto both =
    params.number("eps", 0.2, non_negative, "half-width of the clip of the ratio, both sides");
  clip_options result;
  result.eps_low = params.number("eps_low", both, non_negative, "below 1; default: eps");
  result.eps_high = params.number("eps_high", both, non_negative, "above 1; default: eps");
  return result;
}

clip_options clip_options::read_with_dual(param_reader& params) {
  auto result = read(params);
  result.dual_c = params.maybe_number("dual_clip_c", {0, infinity},
                                      "for negative advantages the loss is at most -c·A; > 1");
  return result;
}

void apply_ppo_clip(term& into, const at::Tensor& ratio, const at::Tensor& advantages,
                    const clip_options& options) {
  auto r = ratio.detach();
  auto negative = advantages.lt(0);
  into.clipped_high = r.gt(options.high()).logical_and(negative.logical_not());
  into.clipped_low = r.lt(options.low()).logical_and(negative);
  auto effective = at::where(into.clipped_high, options.high(), ratio);
  effective = at::where(into.clipped_low, options.low(), effective);
  if (options.dual_c) {
    into.dual_clipped = effective.detach().gt(*options.dual_c).logical_and(negative);
    effective = at::where(into.dual_clipped, *options.dual_c, effective);
  }
  into.value = advantages.neg() * effective;
}

} // namespace millrace::policy_loss
