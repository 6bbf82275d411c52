#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace millrace::plugins {

/// A child process did not answer. The text says what it did instead: "was killed by signal 11
/// (Segmentation fault)", "exited with status 3", "gave no answer within 2 s and was killed".
class child_failure : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

struct child_pool_options {
  std::vector<std::string> command; ///< program and arguments; found as in a shell
  std::int32_t size = 1;            ///< processes at most; each is started when it is first needed
  double timeout_s = 10;            ///< for one answer, with all waiting
  double backoff_s = 0.1;  ///< before a process that failed twice in a row is started again; doubles
  double max_backoff_s = 5;
  std::size_t longest_answer = std::size_t{1} << 20; ///< bytes
};

/// Processes that answer a line on standard input with a line on standard output, one at a time
/// each. One that dies, is late or writes a longer line than it may is killed with its process group, and another is started in its
/// place: at once after an answer that went well, after a growing delay when they fail in a row.
/// Processes end when their input does. Thread-safe.
class child_pool {
public:
  explicit child_pool(child_pool_options options);
  ~child_pool();

  /// Sends a line (without its end), returns the answer's. \throws child_failure
  std::string ask(const std::string& line);

  /// Processes that were started so far.
  [[nodiscard]] std::int64_t started() const;

private:
  using time = std::chrono::steady_clock::time_point;
  struct child;
  class lease;

  void converse(child& c, const std::string& line, time deadline, std::string& answer);
  void start(child& c, time deadline);
  enum class mishap { late, endless, closed };
  [[noreturn]] void fail(child& c, mishap it_went);

  child_pool_options options_;
  mutable std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<child>> children_;
  std::vector<child*> idle_;
  std::int64_t started_ = 0;
};

} // namespace millrace::plugins
