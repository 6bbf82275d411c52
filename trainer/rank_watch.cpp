#include "trainer/rank_watch.hpp"

#include "runtime/log.hpp"

#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <string>

namespace millrace::trainer {

namespace {

constexpr int tag = 0;
constexpr auto no_end = std::chrono::hours(24 * 365 * 10);
constexpr auto patience = std::chrono::milliseconds(500);
constexpr std::int64_t farewell = 0, loss = 1;

at::Tensor a_word(std::int64_t value) { return at::full({1}, value, at::kLong); }

} // namespace

rank_watch::rank_watch(c10::intrusive_ptr<c10d::Backend> over, int rank, int size,
                       std::function<void()> lost)
    : over_(std::move(over)), rank_(rank), lost_(std::move(lost)) {
  for (int r = rank > 0 ? 0 : 1; r < (rank > 0 ? 1 : size); ++r) {
    peer p{r, a_word(farewell), {}, {}};
    std::vector<at::Tensor> into{p.word};
    p.arrival = over_->recv(into, r, tag);
    peers_.push_back(std::move(p));
  }
  for (auto& p : peers_)
    p.listener = std::thread([this, &p] { listen(p); });
}

void rank_watch::listen(const peer& p) {
  auto gone = false;
  try {
    gone = p.arrival->wait(no_end) && p.word.item<std::int64_t>() == loss;
  } catch (const std::exception&) {
    gone = true;
  }
  if (!gone || ending_ || told_.exchange(true))
    return;
  if (rank_ == 0)
    say(loss);
  try {
    lost_();
  } catch (const std::exception& e) {
    log::warning("trainer", std::string("telling of a lost rank failed: ") + e.what());
  }
}

void rank_watch::say(std::int64_t word) {
  for (const auto& p : peers_)
    try {
      std::vector<at::Tensor> out{a_word(word)};
      over_->send(out, p.rank, tag)->wait(patience);
    } catch (const std::exception&) {
      // It is gone itself.
    }
}

rank_watch::~rank_watch() {
  ending_ = true;
  say(farewell);
  for (auto& p : peers_) {
    p.arrival->abort(); // wait() then returns false
    p.listener.join();
  }
}

} // namespace millrace::trainer
