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
/// then sleep. A worker that the system does not let run is not waited for: the others do its part. One
/// that lost its core in the middle of a part, to a thread that pulls weights, say, holds all others
/// up; it then leaves the core alone for a while, as two that compete for it would do so again and
/// again.
class worker_pool {
public:
  /// `threads` counts the caller: 1 makes none.
  explicit worker_pool(int threads);
  ~worker_pool();
  worker_pool(const worker_pool&) = delete;
  worker_pool& operator=(const worker_pool&) = delete;

  [[nodiscard]] int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(first, last, thread) for contiguous parts of [0, n), at least `grain` long (the last
  /// may be shorter), and returns when all are done. Each thread takes part after part, as long as
  /// there are any. `body` must not throw.
  template <class Body>
  void split(std::int64_t n, std::int64_t grain, Body&& body) {
    const std::int64_t most = 4 * std::int64_t{threads()};
    const auto length = std::max({grain, (n + most - 1) / most, std::int64_t{1}});
    if (threads() == 1 || n <= length) {
      if (n > 0)
        body(std::int64_t{0}, n, 0);
      return;
    }
    next_ = 0;
    job_ = [this, &body, n, length](int thread) {
      for (auto first = next_.fetch_add(length); first < n; first = next_.fetch_add(length))
        body(first, std::min(first + length, n), thread);
    };
    run();
  }

  /// While it lives one worker, where there is one, leaves its core to the owner of this, who works
  /// beside the caller: two that took turns on a core would hold all others up.
  class lent_core {
  public:
    explicit lent_core(worker_pool& pool) : pool_(pool) { ++pool_.lent_; }
    ~lent_core() {
      --pool_.lent_;
      pool_.lent_.notify_all();
    }
    lent_core(const lent_core&) = delete;
    lent_core& operator=(const lent_core&) = delete;

  private:
    worker_pool& pool_;
  };

private:
  static constexpr std::uint64_t closed = std::uint64_t{1} << 31;

  struct alignas(64) worker {
    std::atomic<std::int64_t> left_at{0};    ///< when it ended its last part, in ns
    std::atomic<std::int64_t> rest_until{0}; ///< takes no part before
    std::int64_t rest = 0;                   ///< the caller's: how long, last time
  };

  void run();
  void let_rest(std::int64_t began, std::int64_t ran_out);
  bool enter(std::uint32_t turn);
  void work(int thread);

  std::atomic<int> lent_{0};   ///< cores; of the last workers
  std::vector<worker> states_; ///< before the threads, which use them
  std::vector<std::thread> workers_;
  std::function<void(int)> job_;
  std::atomic<std::int64_t> next_{0}; ///< of a split: where the part not taken yet begins
  std::atomic<std::uint32_t> turn_{0}; ///< the number of the newest loop
  /// Its number again, whether it is closed to those who come late, and how many are at work in it.
  std::atomic<std::uint64_t> gate_{closed};
  std::atomic<bool> stop_{false};
};

} // namespace millrace::model
