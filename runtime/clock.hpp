#pragma once

#include <atomic>
#include <chrono>

namespace millrace {

/// Time, injected: decision logic gets numbers, actors and tests choose the clock. Thread-safe.
class clock {
public:
  virtual ~clock() = default;
  /// Seconds since the clock was made. Never goes back, and is not moved by changes of the date.
  [[nodiscard]] virtual double now() const = 0;
  /// Seconds since 1970, for stamps that people read.
  [[nodiscard]] virtual double wall() const = 0;
};

/// The machine's.
class real_clock final : public clock {
public:
  [[nodiscard]] double now() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  [[nodiscard]] double wall() const override {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
      .count();
  }

private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Stands still until it is moved: for tests and the simulation.
class manual_clock final : public clock {
public:
  explicit manual_clock(double wall_at_start = 0) : wall_at_start_(wall_at_start) {}
  [[nodiscard]] double now() const override { return now_.load(); }
  [[nodiscard]] double wall() const override { return wall_at_start_ + now(); }
  void advance(double seconds) { now_.fetch_add(seconds); }

private:
  std::atomic<double> now_{0};
  double wall_at_start_;
};

} // namespace millrace
