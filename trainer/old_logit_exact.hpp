#pragma once

#include "trainer/old_logits.hpp"
#include "trainer/version_ring.hpp"

#include <memory>

namespace millrace::trainer {

/// The strategies that give each token the log-prob of the version that sampled it: snapshot,
/// dedicated, interrupt. All serve a token by the first of these routes that can:
///   1. computed beforehand (dedicated, interrupt),
///   2. θ itself, where the token's version is the one being trained from,
///   3. a kept version of the ring,
///   4. algorithm.old_logits_fallback: the average of the parameters, or θ.
/// Over data-parallel ranks each computes those of its own groups, and keeps all versions for it.
/// With an old-logit node in the cluster that one keeps the versions, and nobody here: route 3 is
/// missing, and what the node has not computed in time is served by 2 and 4.
std::unique_ptr<old_logits> make_exact_old_logits(const settings& s,
                                                  const model::transformer& network,
                                                  rank_mesh* mesh);

/// How many versions these settings keep, and where.
ring_limits kept_version_limits(const settings& s, const rank_mesh* mesh = nullptr);

} // namespace millrace::trainer
