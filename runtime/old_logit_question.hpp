#pragma once

#include "runtime/messages.hpp"

#include <cstdint>

namespace millrace {

/// XXH3 of a rollout's tokens.
std::uint64_t fingerprint_of(const rollout& r);

/// What an old-logit actor is asked about a batch.
old_logit_question old_logit_question_of(const train_batch& batch);

} // namespace millrace
