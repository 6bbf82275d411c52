#pragma once

#include "runtime/messages.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace millrace {

/// Tokens begin, begin + 1, …, end − 1 of a rollout's arrays.
struct token_span {
  std::int32_t begin = 0;
  std::int32_t end = 0;

  bool operator==(const token_span&) const = default;
};

/// Tokens of one rollout that are older than η allows and must not reach the loss.
struct masked_rollout {
  rollout_id id;
  std::vector<token_span> spans; ///< ascending, not touching
};

/// What one training step consumes. Shared and constant: the buffer keeps it until it is confirmed.
struct training_batch {
  version from; ///< the version being trained from
  /// from − η, at least 0. The tokens to train on are those whose version is this or younger.
  version oldest_trained;
  std::vector<std::shared_ptr<const scored_group>> groups; ///< oldest first
  std::int64_t rollouts = 0;
  std::vector<masked_rollout> masked; ///< only rollouts with masked tokens; groups' order
  std::int64_t masked_tokens = 0;
};

/// How many rollouts have which staleness: of their oldest token (head), their youngest (tail), and
/// the difference (span), which is above 0 when new weights came while they were sampled.
struct staleness_histogram {
  std::map<std::int32_t, std::int64_t> head, tail, span;
};

/// Of a batch as it is trained on: masked tokens don't count. A rollout with no token left has no
/// staleness. The largest head is therefore never above η.
[[nodiscard]] staleness_histogram staleness_of(const training_batch& batch);

} // namespace millrace
