#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

namespace millrace::policy_loss {

struct stitched {
  at::Tensor logp;  ///< fp64, shape of `versions`; 0 for version −1 and where the row is missing
  at::Tensor found; ///< bool: the token's version was among the rows
};

/// Picks each token's log-prob from the row of the version that sampled it. By Proposition 1 of
/// AReaL (2505.24298) a rollout interrupted by weight updates is as if sampled from one policy,
/// π_behav(·|s_t) = π_{v(t)}(·|s_t); the same assembles exact old log-probs from snapshots.
/// @param by_version per version, log-probs of all tokens under it, shape of `versions`
/// @param versions i64, −1 for tokens that were not sampled
stitched stitch_by_version(const std::map<std::int64_t, at::Tensor>& by_version,
                           const at::Tensor& versions);

} // namespace millrace::policy_loss
