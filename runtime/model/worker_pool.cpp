#include "runtime/model/worker_pool.hpp"

#include <algorithm>
#include <chrono>

namespace millrace::model {
namespace {

constexpr int spins = 4000; // some tens of microseconds

// Nanoseconds. A worker that is later than `patience` has lost its core; the system gives it to the
// other thread for some milliseconds.
constexpr std::int64_t patience = 500'000, shortest_rest = 20'000'000, longest_rest = 40'000'000;

std::int64_t now() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

} // namespace

worker_pool::worker_pool(int threads) : states_(static_cast<std::size_t>(std::max(threads, 1))) {
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
  const auto began = now();
  const auto turn = turn_.load() + 1;
  gate_ = std::uint64_t{turn} << 32;
  turn_ = turn;
  turn_.notify_all();
  job_(0);
  // Nothing is left to be taken. Who has not come by now need not.
  auto state = gate_.fetch_or(closed) | closed;
  std::int64_t ran_out = 0;
  for (int i = 0; state != (std::uint64_t{turn} << 32 | closed); ++i, state = gate_.load()) {
    if (i < spins) {
      relax();
      continue;
    }
    if (ran_out == 0)
      ran_out = now();
    gate_.wait(state);
  }
  if (ran_out != 0)
    let_rest(began, ran_out);
}

/// After a loop that began, and had no part left to take, at these times, and was waited for.
void worker_pool::let_rest(std::int64_t began, std::int64_t ran_out) {
  // Long parts may take long: nobody has more than one when the last is taken.
  const auto in_time = ran_out + std::max(patience, (ran_out - began) / 2);
  for (auto& w : states_) {
    const auto left = w.left_at.load();
    if (left <= in_time)
      continue;
    const auto last_end = w.rest_until.load();
    const bool again = w.rest > 0 && left - last_end < 3 * longest_rest;
    w.rest = again ? std::min(2 * w.rest, longest_rest) : shortest_rest;
    w.rest_until = now() + w.rest;
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
  auto& own = states_[static_cast<std::size_t>(thread)];
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
    if (const auto lent = lent_.load(); thread + lent >= static_cast<int>(states_.size())) {
      lent_.wait(lent);
      continue;
    }
    if (const auto left = own.rest_until.load() - now(); left > 0) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(left));
      continue;
    }
    if (!enter(seen))
      continue;
    job_(thread);
    own.left_at = now();
    if (--gate_ == (std::uint64_t{seen} << 32 | closed))
      gate_.notify_one();
  }
}

} // namespace millrace::model
