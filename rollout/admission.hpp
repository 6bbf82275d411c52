#pragma once

#include "runtime/ids.hpp"

#include <algorithm>
#include <cstdint>

namespace millrace {

/// The three numbers that bound the stream. All in rollouts, but for η.
struct admission_limits {
  std::int64_t max_concurrent = 1; ///< running at once, over all generators
  std::int64_t batch_size = 1;     ///< B: rollouts that one training step consumes
  std::int32_t eta = 0;            ///< η: the largest staleness that may be trained on
};

/// What is outstanding, in rollouts.
struct stream_load {
  std::int64_t running = 0; ///< handed to a generator, or waiting for one
  /// Finished and not yet consumed, plus the batch in training until its version is published.
  /// Releasing the batch at hand-out instead would turn η = 0 into η = 1.
  std::int64_t held = 0;

  [[nodiscard]] constexpr std::int64_t outstanding() const { return running + held; }
};

/// How many more rollouts may start: admit while outstanding < (η + 1)·B and running ≤
/// max_concurrent. It counts what is outstanding rather than AReaL's cumulative ⌊(N−1)/B⌋ ≤ v + η,
/// which is the same only if each version consumes exactly B and nothing is ever filtered, dropped
/// or failed (arXiv 2505.24298, eq. 3).
constexpr std::int64_t admissible(const admission_limits& limits, const stream_load& load) {
  auto budget = (std::int64_t{limits.eta} + 1) * limits.batch_size - load.outstanding();
  return std::max<std::int64_t>(0, std::min(budget, limits.max_concurrent - load.running));
}

/// The oldest version at which a rollout admitted now may begin. Oldest first, ⌊outstanding / B⌋
/// steps go before it, so it is trained from version `published + ⌊outstanding / B⌋` and may be η
/// older than that. With the budget full this is `published` itself: a generator that has not yet
/// acknowledged the newest version gets nothing then.
constexpr version oldest_start(const admission_limits& limits, const stream_load& load,
                               version published) {
  auto trained_from = published.value + load.outstanding() / limits.batch_size;
  auto oldest = std::min<std::int64_t>(trained_from - limits.eta, published.value);
  return {static_cast<std::int32_t>(std::max<std::int64_t>(0, oldest))};
}

} // namespace millrace
