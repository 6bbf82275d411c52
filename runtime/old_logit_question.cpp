#include "runtime/old_logit_question.hpp"

#include <xxhash.h>

#include <algorithm>

namespace millrace {

std::uint64_t fingerprint_of(const rollout& r) {
  return XXH3_64bits(r.tokens.data(), r.tokens.size() * sizeof r.tokens[0]);
}

old_logit_question old_logit_question_of(const train_batch& batch) {
  old_logit_question out{batch.training_from, {}, {}};
  for (const auto& g : batch.groups)
    for (const auto& r : g.rollouts) {
      const auto trained = std::count_if(r.versions.begin(), r.versions.end(),
                                         [](auto v) { return v != no_version.value; });
      out.rollouts.push_back({r.id, fingerprint_of(r), static_cast<std::int32_t>(trained)});
    }
  return out;
}

} // namespace millrace
