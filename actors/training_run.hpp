#pragma once

#include "runtime/config/settings.hpp"

#include <caf/fwd.hpp>

#include <filesystem>
#include <functional>

namespace millrace {

struct run_request {
  settings options;
  std::filesystem::path directory;
  bool resume = false;
  bool quiet = false; ///< nothing on the screen but warnings
  /// Asked a few times a second: true ends the run after the step under way, with a checkpoint.
  std::function<bool()> interrupted;
  /// Called when the stream is up, with its supervisor: for tests and tools.
  std::function<void(caf::actor_system&, const caf::actor& supervisor)> started;
};

enum class run_outcome { done, interrupted };

/// `millrace run`: warm-up, evaluation, the stream until its last step, evaluation, summary and
/// report, all in this process. \throws user_error, and std::runtime_error with the reason when the
/// stream cannot go on
run_outcome run_training(const run_request& request);

} // namespace millrace
