#pragma once

#include <chrono>

namespace millrace::weightsync {

/// Seconds since it was made or last asked by lap().
class stopwatch {
public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(clock::now() - start_).count();
  }
  double lap() {
    auto now = clock::now();
    auto s = std::chrono::duration<double>(now - start_).count();
    start_ = now;
    return s;
  }

private:
  using clock = std::chrono::steady_clock;
  clock::time_point start_ = clock::now();
};

} // namespace millrace::weightsync
