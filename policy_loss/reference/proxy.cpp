#include "policy_loss/reference/proxy.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace millrace::policy_loss {

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

/// What r = θ/μ is where r^exponent = bound.
double root(double bound, double exponent, double if_never) {
  return exponent == 0 ? if_never : std::pow(bound, 1 / exponent);
}

} // namespace

at::Tensor interpolate(interpolation how, const at::Tensor& w_behav, const at::Tensor& logp_behav,
                       const at::Tensor& logp_new) {
  at::NoGradGuard no_grad;
  auto w = w_behav.to(at::kDouble);
  auto mu = logp_behav.detach().to(at::kDouble);
  auto theta = logp_new.detach().to(at::kDouble);
  auto between = how == interpolation::loglinear
                   ? w * mu + (1 - w) * theta
                   : at::logaddexp(w.log() + mu, (1 - w).log() + theta);
  // At the ends exactly, so that 0·(−inf) of the other one doesn't come in.
  return at::where(w.eq(1), mu, at::where(w.eq(0), theta, between));
}

at::Tensor interpolate(interpolation how, double w_behav, const at::Tensor& logp_behav,
                       const at::Tensor& logp_new) {
  return interpolate(how, at::scalar_tensor(w_behav, logp_new.options().dtype(at::kDouble)),
                     logp_behav, logp_new);
}

effective_bounds bounds_on_total_ratio(interpolation how, double w, double eps_low, double eps_high,
                                       double disc_low, double disc_high) {
  auto low = 1 - eps_low;
  auto high = 1 + eps_high;
  if (how == interpolation::loglinear)
    return {root(std::max(low, 0.0), w, 0), root(high, w, infinite), root(disc_low, 1 - w, 0),
            root(disc_high, 1 - w, infinite)};
  // r1 = r/(w + (1 − w)·r) rises to 1/(1 − w): a bound beyond that is never reached.
  auto from_r1 = [&](double bound) {
    auto rest = 1 - (1 - w) * bound;
    return rest > 0 ? w * bound / rest : infinite;
  };
  auto from_r2 = [&](double bound, double if_never) {
    return w == 1 ? if_never : std::max(0.0, (bound - w) / (1 - w));
  };
  return {w == 0 ? 0 : std::max(0.0, from_r1(low)), w == 0 ? infinite : from_r1(high),
          from_r2(disc_low, 0), from_r2(disc_high, infinite)};
}

version_proxy areal_prox_approx(const at::Tensor& logp_behav, const at::Tensor& logp_new,
                                const at::Tensor& versions, std::int64_t current_version) {
  at::NoGradGuard no_grad;
  auto gap = versions.neg().add(current_version).to(at::kDouble);
  auto applies = versions.ge(0).logical_and(gap.gt(0));
  auto alpha = at::where(applies, ((gap - 1) / gap).clamp(0, 1), 0.0);
  version_proxy result;
  result.alpha_on_theta = alpha;
  result.w_behav = 1 - alpha;
  result.loglinear = interpolate(interpolation::loglinear, result.w_behav, logp_behav, logp_new);
  result.linear = interpolate(interpolation::arithmetic, result.w_behav, logp_behav, logp_new);
  return result;
}

} // namespace millrace::policy_loss
