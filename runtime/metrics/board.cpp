#include "runtime/metrics/board.hpp"

#include <algorithm>

namespace millrace {

vitals::vitals(std::string kind, std::string name, double now)
  : metrics(std::move(kind)), name_(std::move(name)), since_(now), beat_at_(now) {
}

void vitals::working(std::string_view state, double now) {
  enter(state, {}, {}, now);
}

void vitals::waiting(std::string_view on, std::string_view reason, double now) {
  enter("waiting", on, reason, now);
}

void vitals::enter(std::string_view state, std::string_view on, std::string_view reason,
                   double now) {
  std::lock_guard lock(mutex_);
  if (state_ == state && waits_for_ == on && reason_ == reason)
    return;
  state_ = state;
  waits_for_ = on;
  reason_ = reason;
  since_ = now;
}

void vitals::beat(std::int64_t mailbox, double now) {
  mailbox_.store(mailbox, std::memory_order_relaxed);
  beat_at_.store(now, std::memory_order_relaxed);
}

actor_snapshot vitals::snapshot(double now) const {
  actor_snapshot out;
  metrics.snapshot(out);
  out.name = name_;
  out.mailbox = mailbox_.load(std::memory_order_relaxed);
  out.silent = std::max(0.0, now - beat_at_.load(std::memory_order_relaxed));
  std::lock_guard lock(mutex_);
  out.state = state_;
  out.waits_for = waits_for_;
  out.reason = reason_;
  out.since = std::max(0.0, now - since_);
  return out;
}

std::shared_ptr<vitals> snapshot_board::add(std::string kind, std::string name, double now,
                                            std::function<void()> ask) {
  auto out = std::make_shared<vitals>(std::move(kind), std::move(name), now);
  std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const entry& e) { return e.who.expired(); });
  entries_.push_back({out, std::move(ask)});
  return out;
}

void snapshot_board::ask_all() {
  std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const entry& e) { return e.who.expired(); });
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].ask && !entries_[i].who.expired())
      entries_[i].ask();
}

void snapshot_board::leave(std::shared_ptr<vitals>& who) {
  std::lock_guard lock(mutex_);
  who.reset();
}

std::vector<actor_snapshot> snapshot_board::snapshots(double now) const {
  // Held while their last owner may be letting go: an actor's end must not run under our lock.
  std::vector<std::shared_ptr<vitals>> present;
  std::string node;
  {
    std::lock_guard lock(mutex_);
    node = node_;
    for (const auto& e : entries_)
      if (auto who = e.who.lock())
        present.push_back(std::move(who));
  }
  std::vector<actor_snapshot> out;
  out.reserve(present.size());
  for (const auto& who : present) {
    out.push_back(who->snapshot(now));
    out.back().node = node;
  }
  return out;
}

const std::shared_ptr<snapshot_board>& snapshot_board::of_process() {
  static const auto board = std::make_shared<snapshot_board>();
  return board;
}

void snapshot_board::set_node(std::string name) {
  std::lock_guard lock(mutex_);
  node_ = std::move(name);
}

std::string snapshot_board::node() const {
  std::lock_guard lock(mutex_);
  return node_;
}

} // namespace millrace
