#pragma once

#include "runtime/config/settings.hpp"

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace millrace {

/// What `run`, `node` and `up` take from the command line in common.
struct run_arguments {
  std::string config, directory, data;
  std::optional<std::string> seed;
  std::vector<std::string> assignments; ///< of --set
  bool resume = false;

  /// Declares the options on a command. The struct must outlive the parsing.
  void declare(CLI::App& command);
  /// The configuration's file: with --resume and without one, that which the run's folder holds.
  /// \throws user_error when none is named
  [[nodiscard]] std::string file() const;
  /// What --set, --seed and --data change in it: path=value.
  [[nodiscard]] std::vector<std::string> changes() const;
  [[nodiscard]] settings load() const;
  /// And the files that it names are there.
  [[nodiscard]] settings load_for_training() const;
  /// Where the run goes: --run-dir, run.dir or a fresh folder. \throws user_error when --resume
  /// names none
  [[nodiscard]] std::string run_directory(const settings& s) const;
};

/// Memory, descriptors and signals of a process that trains or generates.
void prepare_process();

} // namespace millrace
