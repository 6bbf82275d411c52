#include "runtime/model/worker_pool.hpp"

#include <algorithm>

namespace millrace::model {
namespace {

constexpr int spins = 4000; // some tens of microseconds

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

} // namespace

worker_pool::worker_pool(int threads) {
  for (int i = 1; i < threads; ++i)
    workers_.emplace_back([this, i] { work(i); });
}

worker_pool::~worker_pool() {
  stop_ = true;
  ++turn_;
  turn_.notify_all();
  for (auto& w : workers_)
    w.join();
}

void worker_pool::run() {
  busy_ = static_cast<std::int32_t>(workers_.size());
  ++turn_;
  turn_.notify_all();
  job_(0);
  for (int i = 0;; ++i) {
    const auto left = busy_.load();
    if (left == 0)
      return;
    if (i < spins)
      relax();
    else
      busy_.wait(left);
  }
}

void worker_pool::work(int thread) {
  std::uint32_t seen = 0;
  while (true) {
    for (int i = 0; turn_.load() == seen; ++i) {
      if (i < spins)
        relax();
      else
        turn_.wait(seen);
    }
    ++seen; // a turn begins only when all have finished the one before
    if (stop_)
      return;
    job_(thread);
    if (--busy_ == 0)
      busy_.notify_one();
  }
}

} // namespace millrace::model
