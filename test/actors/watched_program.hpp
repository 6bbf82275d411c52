#pragma once

#include "actors/node_processes.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <sys/types.h>
#include <vector>

namespace millrace::test {

/// A TCP port of 127.0.0.1 that nobody has at the moment.
int free_port();

/// A cluster of four processes on this machine, a model that trains in seconds: trainer "head",
/// generators "gen0" and "gen1", "judge" with rewards and replay.
nlohmann::json tiny_cluster(int steps);

/// Writes a configuration. \returns the file's path
std::string write(const std::filesystem::path& file, const nlohmann::json& j);
nlohmann::json read(const std::filesystem::path& file);

/// The `millrace` program under watch: what it says, and how it ends.
class watched {
public:
  /// `prefix`: a program, by its path, and its arguments, that becomes this one.
  explicit watched(const std::vector<std::string>& arguments, std::vector<std::string> prefix = {});

  /// Waits until it has said this; false when it ended or the time is over.
  bool says(const std::string& text, double seconds = 60);
  /// Its exit status; -1 when it still runs.
  int ends(double seconds = 90);
  void signal(int number) { processes_.signal_all(number); }
  [[nodiscard]] const std::string& said() const { return said_; }
  /// The process of this node, as the cluster told it last; -1: it didn't.
  [[nodiscard]] pid_t node(const std::string& name) const;

private:
  template <class Done>
  void wait(Done done, double seconds);

  std::string said_;
  int status_ = -1;
  node_processes processes_;
};

} // namespace millrace::test
