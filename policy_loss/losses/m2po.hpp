#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace millrace::policy_loss {

/// Which tokens M2PO may drop.
enum class m2po_scope : std::uint8_t {
  all,         ///< any (AReaL)
  trust_region ///< those that PPO's clip would look at: A > 0, r > 1 or A < 0, r < 1 (the paper)
};

/// M2PO's selection: of the candidates, those with the largest (log r)² are dropped until the mean
/// over the remaining candidates is below the threshold (strictly); all of them if it never is.
struct m2po_selection {
  at::Tensor keep;   ///< bool, shape of log_ratio
  at::Tensor before; ///< 0-d: mean (log r)² over the candidates
  at::Tensor after;  ///< 0-d: over those left
  at::Tensor candidates, left; ///< 0-d counts
};

/// For `inputs::keep`, when a batch is evaluated by micro-batches: the selection needs it whole.
/// @param log_ratio log θ/μ, finite  @param valid bool: tokens to look at; others stay in `keep`
m2po_selection m2po_keep(const at::Tensor& log_ratio, const at::Tensor& advantages,
                         const at::Tensor& valid, double threshold, m2po_scope scope);

} // namespace millrace::policy_loss
