#include "policy_loss/importance.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>

namespace millrace::policy_loss {

ratio_level read_level(param_reader& params, std::string_view name, std::string_view meaning) {
  return static_cast<ratio_level>(
    params.choice(name, {"token", "sequence", "geometric"}, 0, meaning));
}

importance_options importance_options::read(param_reader& params) {
  importance_options result;
  result.weight_level = read_level(
    params, "weight_level", "level of the weight: token, product or geometric mean by sequence");
  result.mode = static_cast<weight_mode>(params.choice("weight_mode", {"ratio", "none", "clamp"}, 0,
                                                       "prox/μ, 1, or min(prox/μ, weight_cap)"));
  result.weight_cap =
    params.number("weight_cap", infinity, non_negative, "cap of weight_mode = clamp");
  result.disc_level = read_level(params, "disc_level", "level of the ratio that is masked on");
  result.disc_low = params.number("disc_low", 0, non_negative, "prox/μ below this is masked");
  result.disc_high =
    params.number("disc_high", infinity, non_negative, "prox/μ above this is masked");
  return result;
}

void correct_discrepancy(term& into, const batch& b, const at::Tensor& log_r2,
                         const importance_options& options) {
  auto masked_on = b.exp(b.at_level(options.disc_level, log_r2));
  into.keep = masked_on.ge(options.disc_low).logical_and(masked_on.le(options.disc_high));
  switch (options.mode) {
    case weight_mode::none: into.weight = at::ones_like(log_r2); return;
    case weight_mode::ratio: into.weight = b.exp(b.at_level(options.weight_level, log_r2)); break;
    case weight_mode::clamp:
      into.weight = b.exp(b.at_level(options.weight_level, log_r2)).clamp_max(options.weight_cap);
      break;
  }
  into.value = into.weight * into.value;
}

} // namespace millrace::policy_loss
