#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace millrace::model {

/// Threads that split loops between them. Belongs to one caller thread, which takes part. Idle
/// workers spin for some microseconds, as the next loop follows at once while a model is computed,
/// then sleep.
class worker_pool {
public:
  /// `threads` counts the caller: 1 makes none.
  explicit worker_pool(int threads);
  ~worker_pool();
  worker_pool(const worker_pool&) = delete;
  worker_pool& operator=(const worker_pool&) = delete;

  [[nodiscard]] int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(first, last, thread) for contiguous parts of [0, n), at least `grain` long, and
  /// returns when all are done. `body` must not throw.
  template <class Body>
  void split(std::int64_t n, std::int64_t grain, Body&& body) {
    const auto parts = std::min<std::int64_t>(threads(), grain > 0 ? (n + grain - 1) / grain : n);
    if (parts <= 1) {
      if (n > 0)
        body(std::int64_t{0}, n, 0);
      return;
    }
    job_ = [&body, n, parts](int thread) {
      if (thread < parts)
        body(n * thread / parts, n * (thread + 1) / parts, thread);
    };
    run();
  }

private:
  void run();
  void work(int thread);

  std::vector<std::thread> workers_;
  std::function<void(int)> job_;
  std::atomic<std::uint32_t> turn_{0};
  std::atomic<std::int32_t> busy_{0};
  std::atomic<bool> stop_{false};
};

} // namespace millrace::model
