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
  const auto turn = turn_.load() + 1;
  gate_ = std::uint64_t{turn} << 32;
  turn_ = turn;
  turn_.notify_all();
  job_(0);
  // Nothing is left to be taken. Who has not come by now need not.
  auto state = gate_.fetch_or(closed) | closed;
  for (int i = 0; state != (std::uint64_t{turn} << 32 | closed); ++i, state = gate_.load()) {
    if (i < spins)
      relax();
    else
      gate_.wait(state);
  }
}

/// Joins the loop numbered `turn`, unless it is closed or over.
bool worker_pool::enter(std::uint32_t turn) {
  auto state = gate_.load();
  while (state >> 32 == turn && !(state & closed))
    if (gate_.compare_exchange_weak(state, state + 1))
      return true;
  return false;
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
    seen = turn_.load();
    if (stop_)
      return;
    if (!enter(seen))
      continue;
    job_(thread);
    if (--gate_ == (std::uint64_t{seen} << 32 | closed))
      gate_.notify_one();
  }
}

} // namespace millrace::model
