#pragma once

#include "runtime/config/settings.hpp"

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace millrace {

/// What `run`, `node` and `up` take from the command line in common.
struct run_arguments {
  std::string config, directory, data;
  std::vector<std::string> assignments; ///< of --set, and what --data and --seed stand for
  bool resume = false;

  /// Declares the options on a command. The struct must outlive the parsing.
  void declare(CLI::App& command);
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
