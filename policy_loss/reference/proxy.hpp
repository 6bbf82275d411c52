#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace millrace::policy_loss {

/// How a proximal policy is made between behaviour and current one, when its own log-probs are
/// lost.
enum class interpolation : std::uint8_t {
  loglinear, ///< log prox = w·log μ + (1 − w)·log θ
  arithmetic ///< prox = w·μ + (1 − w)·θ
};

/// The interpolated log prox, detached. `w_behav` in [0, 1] is the weight on μ: a number, or a
/// tensor of logp_behav's shape. Where w is 1 (0) the result is log μ (log θ) exactly, whatever the
/// other is. (A-3PO 2512.06547; Missing Old Logits 2605.12070, appendix A.)
at::Tensor interpolate(interpolation how, const at::Tensor& w_behav, const at::Tensor& logp_behav,
                       const at::Tensor& logp_new);
at::Tensor interpolate(interpolation how, double w_behav, const at::Tensor& logp_behav,
                       const at::Tensor& logp_new);

/// The bounds on the total ratio r = θ/μ that a PPO clip on r1 and a mask on r2 amount to under an
/// interpolated prox. Log-linear: r1 = r^w, r2 = r^(1−w). Arithmetic: r1 = r/(w + (1−w)·r),
/// r2 = w + (1−w)·r.
struct effective_bounds {
  double ppo_lower = 0, ppo_upper = 0, mask_lower = 0, mask_upper = 0;
};
effective_bounds bounds_on_total_ratio(interpolation how, double w_behav, double eps_low,
                                       double eps_high, double disc_low, double disc_high);

/// AReaL's approximation of prox from versions alone: with v_b the token's version, v_θ the current
/// one, α = clamp((v_θ − 1 − v_b)/(v_θ − v_b), 0, 1) is the weight on θ; 0 for prompt tokens
/// (version −1) and where there is no gap.
struct version_proxy {
  at::Tensor alpha_on_theta; ///< fp64, shape of `versions`
  at::Tensor w_behav;        ///< 1 − α
  at::Tensor loglinear, linear;
};
version_proxy areal_prox_approx(const at::Tensor& logp_behav, const at::Tensor& logp_new,
                                const at::Tensor& versions, std::int64_t current_version);

} // namespace millrace::policy_loss
