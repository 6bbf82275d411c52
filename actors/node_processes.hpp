#pragma once

#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace millrace {

/// The nodes of this host as child processes: their output line by line, their ends, their signals.
/// The children die with this process, however it ends.
class node_processes {
public:
  struct ended {
    std::string name;
    int status = 0; ///< exit status
    int signal = 0; ///< that ended it, or 0
  };
  /// Gets every line that a node writes to standard output or standard error.
  using line_sink = std::function<void(const std::string& name, std::string_view line)>;

  explicit node_processes(line_sink lines) : lines_(std::move(lines)) {
  }
  ~node_processes();
  node_processes(const node_processes&) = delete;
  node_processes& operator=(const node_processes&) = delete;

  /// Starts `arguments` (with the program's path first) under this name. \throws user_error
  void start(const std::string& name, const std::vector<std::string>& arguments);
  /// Passes lines on for `seconds`, or until a process ends; those that ended since.
  std::vector<ended> watch(double seconds);
  void signal(const std::string& name, int number);
  void signal_all(int number);
  [[nodiscard]] bool running(const std::string& name) const;
  [[nodiscard]] std::size_t running() const { return children_.size(); }

private:
  struct child {
    std::string name;
    pid_t pid = -1;
    int output = -1;
    std::string rest; ///< of a line that has not ended yet
  };

  void read_from(child& c);
  void take_lines(child& c, bool all);

  line_sink lines_;
  std::vector<child> children_;
};

} // namespace millrace
