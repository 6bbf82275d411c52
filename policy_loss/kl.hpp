#pragma once

#include "policy_loss/params.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace millrace::policy_loss {

/// Estimators of KL(p‖q) from samples of p, x = log p − log q (Schulman, "Approximating KL").
enum class kl_estimator : std::uint8_t {
  k1, ///< x: unbiased, can be negative
  k2, ///< x²/2
  k3  ///< e^(−x) − 1 + x: unbiased, never negative
};

/// Per token; differentiable. e^(−x) is bounded, so a far-off reference gives no infinity.
at::Tensor kl_estimate(kl_estimator how, const at::Tensor& x);

/// Reads a parameter `name` with choices k1, k2, k3.
kl_estimator read_kl_estimator(param_reader& params, std::string_view name, kl_estimator otherwise);

} // namespace millrace::policy_loss
