#pragma once

#include "runtime/config/settings.hpp"

#include <caf/fwd.hpp>

#include <filesystem>
#include <functional>
#include <memory>

namespace millrace {

struct step_observer;

struct run_request {
  settings options;
  std::filesystem::path directory;
  bool resume = false;
  /// The configuration's cluster is in use, and this is its trainer's node: other nodes bring their
  /// workers. Otherwise everything runs in this process, whatever cluster.nodes says.
  bool cluster = false;
  bool quiet = false; ///< nothing on the screen but warnings
  /// Asked a few times a second: true ends the run after the step under way, with a checkpoint.
  std::function<bool()> interrupted;
  /// Called when the stream is up, with its supervisor: for tests and tools.
  std::function<void(caf::actor_system&, const caf::actor& supervisor)> started;
  std::shared_ptr<const step_observer> observer; ///< looks on at each training step, or empty
};

enum class run_outcome { done, interrupted };

/// `millrace run`: warm-up, evaluation, the stream until its last step, evaluation, summary and
/// report, all in this process, or with workers in others. \throws user_error, and
/// std::runtime_error with the reason when the stream cannot go on
run_outcome run_training(const run_request& request);

} // namespace millrace
