#include "replay/batch.hpp"

#include <algorithm>

namespace millrace {

staleness_histogram staleness_of(const training_batch& batch) {
  staleness_histogram h;
  for (const auto& group : batch.groups)
    for (const auto& r : group->rollouts) {
      std::int32_t oldest = -1, youngest = -1;
      for (auto v : r.versions)
        if (v >= 0 && v >= batch.oldest_trained.value) {
          oldest = oldest < 0 ? v : std::min(oldest, v);
          youngest = std::max(youngest, v);
        }
      if (oldest < 0)
        continue;
      ++h.head[staleness(batch.from, version{oldest})];
      ++h.tail[staleness(batch.from, version{youngest})];
      ++h.span[youngest - oldest];
    }
  return h;
}

} // namespace millrace
