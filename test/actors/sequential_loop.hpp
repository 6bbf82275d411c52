#pragma once

#include "runtime/config/settings.hpp"

#include <filesystem>

namespace millrace {

/// Synchronous RL as a plain loop, without an actor in sight: generate B rollouts, score them,
/// train, again. What the stream at η = 0 must equal bit for bit. Writes the model into `folder`.
void sequential_loop(settings s, const std::filesystem::path& folder);

} // namespace millrace
