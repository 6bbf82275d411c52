#pragma once

#include <chrono>

namespace millrace::trainer {

/// Adds the time from here to the end of the scope to a total, in seconds.
class stopwatch {
public:
  explicit stopwatch(double& total) : total_(total) {}
  ~stopwatch() {
    total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  }
  stopwatch(const stopwatch&) = delete;
  stopwatch& operator=(const stopwatch&) = delete;

private:
  double& total_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

} // namespace millrace::trainer
