#pragma once

#include "child_process.hpp"

#include "weightsync/manifest.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millrace::weightsync {

/// How processes reach each other's memory.
enum class carriage {
  sockets, ///< TCP by sockets
  layered, ///< UCX where it can (here: shared memory), else sockets
  ucx      ///< UCX alone, without its TCP
};

/// A trainer process that publishes a model of known numbers.
class trainer_process {
public:
  explicit trainer_process(carriage by);

  /// The manifest; none when the process doesn't answer in time.
  std::optional<manifest> publish(std::int32_t v);
  /// "granted ID" or "refused".
  std::optional<std::string> acquire(const std::string& receiver, std::int32_t v);
  void release(const std::string& lease);
  child_process& process() { return process_; }

  static constexpr double lease_s = 0.4;

private:
  child_process process_;
};

/// A generator process that pulls, checks every number on its own, and tells.
class generator_process {
public:
  explicit generator_process(carriage by);

  /// Begins to pull; doesn't wait.
  void pull(const manifest& m, double timeout_s);
  /// "ready", "torn", or "failed: …"; none when nothing comes in time.
  std::optional<std::string> result(double timeout_s);
  child_process& process() { return process_; }

private:
  child_process process_;
};

} // namespace millrace::weightsync
