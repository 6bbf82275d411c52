#include "sync_simulation.hpp"

#include "runtime/error.hpp"

#include <algorithm>

namespace millrace::weightsync {

namespace {

using kind = receiver_action::kind;

std::string name_of(std::size_t r) { return "generator " + std::to_string(r); }

} // namespace

sync_simulation::sync_simulation(std::uint64_t seed) : random_(seed) {
  auto count = 1 + random_() % 4;
  for (std::size_t r = 0; r < count; ++r) {
    receiver_options options{1 + random_() % 4, 3, 2, 6, 0.5};
    receivers_.push_back(std::make_unique<receiver>(options));
    later(between(1, 5), [this, r] { trouble(r); });
    later(0.1, [this, r] { watch(r); });
  }
  receivers_.back()->alive = count == 1; // the late one
  if (count > 1)
    later(between(5, 30), [this, count] { receivers_[count - 1]->alive = true; });
  later(0, [this] { publish(); });
  later(1, [this] { remind(); });
}

void sync_simulation::later(double delay, std::function<void()> what) {
  events_.push({now_ + delay, order_++, std::move(what)});
}

void sync_simulation::message(std::function<void()> what) {
  if (chance(0.05)) {
    ++lost;
    return;
  }
  if (chance(0.05))
    later(between(0, 3), what);
  later(chance(0.1) ? between(0, 3) : between(0.0001, 0.01), std::move(what));
}

void sync_simulation::to_receiver(std::size_t r, std::function<void(receiver&)> what) {
  message([this, r, life = receivers_[r]->life, what = std::move(what)] {
    if (receivers_[r]->alive && receivers_[r]->life == life)
      what(*receivers_[r]);
  });
}

void sync_simulation::run(double seconds) {
  while (!events_.empty() && events_.top().at <= seconds) {
    auto e = events_.top();
    events_.pop();
    now_ = e.at;
    e.what();
  }
  now_ = seconds;
}

version sync_simulation::slowest_receiver() const {
  version slowest = publisher_.current();
  for (const auto& r : receivers_)
    slowest = std::min(slowest, r->installed);
  return slowest;
}

void sync_simulation::publish() {
  auto slot = publisher_.begin(next_, now_);
  if (!slot) {
    if (blocked_since_ < 0)
      blocked_since_ = now_;
    longest_block_ = std::max(longest_block_, now_ - blocked_since_);
    ensure(publisher_.blocked_until(now_) > now_, "blocked, but by nothing");
    later(std::max(0.001, publisher_.blocked_until(now_) - now_), [this] { publish(); });
    return;
  }
  blocked_since_ = -1;
  for (const auto& [id, held] : publisher_.leases())
    ensure(held.slot != *slot, "a leased slot is handed out for writing");
  auto v = next_;
  next_ = next_.next();
  // Filling takes time, word by word: who still reads here sees both versions.
  for (std::size_t i = 0; i < slots_[*slot].size(); ++i)
    later(0.01 * static_cast<double>(i), [this, slot, i, v] { slots_[*slot][i] = v.value; });
  later(0.01 * fetches * words, [this, slot] {
    publisher_.commit(*slot, now_);
    for (std::size_t r = 0; r < receivers_.size(); ++r)
      to_receiver(r, [this, r, v = publisher_.current()](receiver& x) {
        act(r, x.machine.notice(v, now_));
      });
    later(between(0.5, 4), [this] { publish(); });
  });
}

// Who has not acknowledged the current version is told again: notices get lost.
void sync_simulation::remind() {
  publisher_.tick(now_);
  for (std::size_t r = 0; r < receivers_.size(); ++r)
    if (publisher_.acknowledged(name_of(r)) < publisher_.current())
      to_receiver(r, [this, r, v = publisher_.current()](receiver& x) {
        act(r, x.machine.notice(v, now_));
      });
  later(1, [this] { remind(); });
}

// Kills a receiver now and then, and lets a fresh one take its place.
void sync_simulation::trouble(std::size_t r) {
  auto& x = receivers_[r];
  if (x->alive && chance(0.15)) {
    ++deaths;
    auto life = x->life + 1;
    x = std::make_unique<receiver>(receiver_options{2, 3, 2, 6, 0.5});
    x->life = life;
    x->alive = false;
    if (chance(0.5)) // its death is noticed, or only its leases' deadlines tell
      later(between(0, 1), [this, r] { publisher_.forget(name_of(r), now_); });
    later(between(0.1, 15), [this, r, life] {
      if (receivers_[r]->life == life)
        receivers_[r]->alive = true;
    });
  }
  later(between(0.5, 3), [this, r] { trouble(r); });
}

void sync_simulation::watch(std::size_t r) {
  auto& x = *receivers_[r];
  if (x.alive)
    act(r, x.machine.tick(now_));
  later(0.05, [this, r] { watch(r); });
}

void sync_simulation::act(std::size_t r, const receiver_machine::actions& actions) {
  for (const auto& a : actions) {
    auto& x = *receivers_[r];
    switch (a.what) {
      case kind::ask_lease: ask_lease(r, a.number); break;
      case kind::start_fetch: start_fetch(r, a); break;
      case kind::verify: verify(r, a); break;
      case kind::cancel: x.reads.clear(); break;
      case kind::release_lease: {
        auto it = x.leases.find(a.number.value);
        if (it != x.leases.end()) {
          message([this, id = it->second.first] { publisher_.release(id, now_); });
          x.leases.erase(it);
        }
        break;
      }
      case kind::ready: ready(r, a.number); break;
      case kind::acknowledge:
        message([this, r, v = a.number] { publisher_.acknowledge(name_of(r), v); });
        break;
      case kind::give_up: break;
    }
  }
}

void sync_simulation::ask_lease(std::size_t r, version v) {
  message([this, r, v, life = receivers_[r]->life] {
    if (receivers_[r]->life != life)
      return;
    auto granted = publisher_.acquire(name_of(r), v, now_);
    auto slot = publisher_.current_slot();
    to_receiver(r, [this, r, v, granted, slot](receiver& x) {
      if (!granted) {
        act(r, x.machine.lease_refused(v, granted.number, now_));
        return;
      }
      x.leases[v.value] = {granted.id, *slot};
      act(r, x.machine.lease_granted(v, fetches, now_));
    });
  });
}

void sync_simulation::start_fetch(std::size_t r, const receiver_action& a) {
  auto& x = *receivers_[r];
  auto slot = x.leases.at(a.number.value).second;
  x.reads[a.ticket] = true;
  // A slow transfer can outlast its lease, and then reads what is being written.
  copy_words(r, a, slot, 0, chance(0.05) ? between(1, 4) : between(0.001, 0.02));
}

void sync_simulation::copy_words(std::size_t r, const receiver_action& a, std::size_t slot,
                                 std::size_t word, double step) {
  later(step, [this, r, a, slot, word, step, life = receivers_[r]->life] {
    auto& x = *receivers_[r];
    if (!x.alive || x.life != life || !x.reads.contains(a.ticket))
      return;
    if (chance(0.01)) {
      ++cuts;
      x.reads.erase(a.ticket);
      act(r, x.machine.fetch_failed(a.ticket, "connection cut", now_));
      return;
    }
    auto at = a.fetch * words + word;
    x.staging[at] = slots_[slot][at];
    if (chance(0.01)) {
      ++corruptions;
      x.staging[at] ^= 1 << random_() % 20;
    }
    if (word + 1 < words) {
      copy_words(r, a, slot, word + 1, step);
      return;
    }
    if (chance(0.05))
      later(between(0, 8), [this, r, a, life] {
        if (receivers_[r]->alive && receivers_[r]->life == life)
          act(r, receivers_[r]->machine.fetched(a.ticket, now_));
      });
    x.reads.erase(a.ticket);
    act(r, x.machine.fetched(a.ticket, now_));
  });
}

void sync_simulation::verify(std::size_t r, const receiver_action& a) {
  auto& x = *receivers_[r];
  auto begin = x.staging.begin() + static_cast<std::ptrdiff_t>(a.fetch * words);
  bool intact = std::all_of(begin, begin + words, [&](auto w) { return w == a.number.value; });
  overwritten_reads += !intact;
  act(r, x.machine.verified(a.ticket, intact, "fetch " + std::to_string(a.fetch), now_));
}

void sync_simulation::ready(std::size_t r, version v) {
  auto& x = *receivers_[r];
  for (auto w : x.staging)
    ensure(w == v.value, "a torn version is ready");
  ensure(x.reads.empty(), "ready while bytes still arrive");
  // The generator swaps at its next token boundary.
  later(between(0.001, 0.2), [this, r, v, life = x.life] {
    auto& y = *receivers_[r];
    if (!y.alive || y.life != life)
      return;
    for (auto w : y.staging)
      ensure(w == v.value, "the staging changed between ready and the swap");
    ensure(v > y.installed, "a generator's version went back");
    y.installed = v;
    ++swaps;
    act(r, y.machine.installed(v, now_));
  });
}

} // namespace millrace::weightsync
