#pragma once

#include "actors/node_processes.hpp"
#include "test/patience.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace millrace::test {

/// A TCP port of 127.0.0.1 that nobody has at the moment.
int free_port();

/// More steps than any test waits for: a step takes milliseconds, so a run that something is to
/// happen to must not come to its end by itself.
inline constexpr int endless = 1'000'000;

/// A cluster of four processes on this machine, a model that trains in seconds: trainer "head",
/// generators "gen0" and "gen1", "judge" with rewards and replay.
nlohmann::json tiny_cluster(int steps);

/// Writes a configuration. \returns the file's path
std::string write(const std::filesystem::path& file, const nlohmann::json& j);
nlohmann::json read(const std::filesystem::path& file);

/// Each step trained a batch of so many rollouts, and every admitted rollout is accounted for.
void check_accounts(const nlohmann::json& summary, int batch);

/// The `millrace` program under watch: what it says, and how it ends.
class watched {
public:
  /// `prefix`: a program, by its path, and its arguments, that becomes this one.
  explicit watched(const std::vector<std::string>& arguments, std::vector<std::string> prefix = {});

  /// Waits until it has said this; false when it ended or the time is over.
  bool says(const std::string& text, double seconds = patience_s);
  /// Waits until it has trained so many steps more.
  bool trains_on(int steps, double seconds = patience_s);
  /// Waits until a node that has died is up again, as another process.
  bool comes_back(const std::string& node, pid_t first_life, double seconds = patience_s);
  /// Waits for the run's first checkpoint: it is written beside the training.
  bool has_checkpoint(const std::filesystem::path& run, double seconds = patience_s);
  /// Its exit status; -1 when it still runs.
  int ends(double seconds = patience_s);
  void signal(int number) { processes_.signal_all(number); }
  [[nodiscard]] const std::string& said() const { return said_; }
  /// The number of the last step that it told; 0: none yet.
  [[nodiscard]] int steps() const;
  /// The process of this node, as the cluster told it last: it must have.
  [[nodiscard]] pid_t node(const std::string& name) const;

private:
  void wait(const std::function<bool()>& done, double seconds);
  bool comes_true(const std::function<bool()>& event, double seconds);

  std::string said_;
  int status_ = -1;
  node_processes processes_;
};

} // namespace millrace::test
