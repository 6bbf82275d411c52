#pragma once

#include "trainer/old_logits.hpp"

#include <memory>

namespace millrace::trainer {

/// The strategies that give each token the log-prob of the version that sampled it: snapshot,
/// dedicated, interrupt. All serve a token by the first of these routes that can:
///   1. computed beforehand (dedicated, interrupt),
///   2. θ itself, where the token's version is the one being trained from,
///   3. a kept version of the ring,
///   4. algorithm.old_logits_fallback: the average of the parameters, or θ.
/// Over data-parallel ranks each computes those of its own groups, and keeps all versions for it.
std::unique_ptr<old_logits> make_exact_old_logits(const settings& s,
                                                  const model::transformer& network,
                                                  rank_mesh* mesh);

} // namespace millrace::trainer
