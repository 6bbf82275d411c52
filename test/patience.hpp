#pragma once

#include <chrono>
#include <thread>

namespace millrace::test {

/// How long a test waits for what must come: far longer than it takes on the busiest machine, so
/// that only a failure takes so long.
inline constexpr std::chrono::seconds patience{120};
inline constexpr double patience_s = patience.count();

/// Waits until it is so; false when patience is over.
template <class Condition>
bool comes_true(Condition condition) {
  for (const auto end = std::chrono::steady_clock::now() + patience;
       std::chrono::steady_clock::now() < end;
       std::this_thread::sleep_for(std::chrono::milliseconds(10)))
    if (condition())
      return true;
  return condition();
}

} // namespace millrace::test
