#include "policy_loss/kl.hpp"

#include <ATen/TensorOperators.h>

namespace millrace::policy_loss {

namespace {

// The gradient e^(−x) must survive its way back to fp32.
constexpr double exp_limit = 80;

} // namespace

at::Tensor kl_estimate(kl_estimator how, const at::Tensor& x) {
  switch (how) {
    case kl_estimator::k1: return x;
    case kl_estimator::k2: return x.square() / 2;
    case kl_estimator::k3: break;
  }
  // expm1 keeps the small values exact where e^(−x) − 1 would cancel.
  return x.neg().clamp_max(exp_limit).expm1() + x;
}

kl_estimator read_kl_estimator(param_reader& params, std::string_view name,
                               kl_estimator otherwise) {
  return static_cast<kl_estimator>(params.choice(
    name, {"k1", "k2", "k3"}, static_cast<std::size_t>(otherwise),
    "estimator of the KL divergence: k1 = x, k2 = x²/2, k3 = e^(-x) - 1 + x"));
}

} // namespace millrace::policy_loss
