#include "weightsync/receiver_machine.hpp"

#include <algorithm>
#include <limits>

namespace millrace::weightsync {

using kind = receiver_action::kind;

void receiver_machine::ask(version v, double now, actions& out) {
  state_ = state::leasing;
  target_ = v;
  deadline_ = now + options_.lease_timeout_s;
  out.push_back({kind::ask_lease, v});
}

auto receiver_machine::notice(version v, double now) -> actions {
  actions out;
  if (v <= newest_)
    return out;
  newest_ = v;
  // While leasing, pulling or ready the current attempt goes on: a receiver slower than the
  // publisher would otherwise never finish one. In backoff the pause is kept, too.
  if (state_ == state::idle)
    ask(v, now, out);
  return out;
}

auto receiver_machine::lease_granted(version v, std::size_t fetches, double now) -> actions {
  actions out;
  if (state_ != state::leasing || v != target_) {
    // Granted after we gave up waiting: hand it back, or it blocks a slot until its deadline. Not
    // so for a duplicate of the grant that we are working under.
    if (v != target_ || (state_ != state::pulling && state_ != state::ready))
      out.push_back({kind::release_lease, v});
    return out;
  }
  state_ = state::pulling;
  deadline_ = now + options_.pull_timeout_s;
  fetches_.assign(fetches, {});
  open_.clear();
  done_ = next_ = 0;
  if (fetches == 0) {
    state_ = state::ready;
    out.push_back({kind::ready, v});
    out.push_back({kind::release_lease, v});
    return out;
  }
  fill_window(out);
  return out;
}

auto receiver_machine::lease_refused(version v, version current, double now) -> actions {
  actions out;
  if (state_ != state::leasing || v != target_)
    return out;
  newest_ = std::max(newest_, current);
  if (newest_ > v)
    ask(newest_, now, out);
  else
    fail("the publisher refused a lease on " + to_string(v), now, out);
  return out;
}

auto receiver_machine::find(std::uint64_t ticket, fetch_state expected) const
  -> std::optional<std::size_t> {
  auto it = open_.find(ticket);
  if (it == open_.end() || fetches_[it->second].state != expected)
    return std::nullopt;
  return it->second;
}

void receiver_machine::fill_window(actions& out) {
  while (next_ < fetches_.size() && open_.size() < options_.window) {
    auto& f = fetches_[next_];
    if (f.state == fetch_state::waiting) {
      f = {fetch_state::reading, f.attempts + 1, next_ticket_++};
      open_[f.ticket] = next_;
      out.push_back({kind::start_fetch, target_, next_, f.ticket});
    }
    ++next_;
  }
}

void receiver_machine::again(std::size_t fetch, const std::string& error, double now,
                             actions& out) {
  open_.erase(fetches_[fetch].ticket);
  if (fetches_[fetch].attempts >= options_.max_attempts) {
    fail(error + " (" + std::to_string(fetches_[fetch].attempts) + " attempts)", now, out);
    return;
  }
  ++retries_;
  fetches_[fetch].state = fetch_state::waiting;
  next_ = std::min(next_, fetch);
  fill_window(out);
}

auto receiver_machine::fetched(std::uint64_t ticket, double) -> actions {
  actions out;
  if (auto fetch = find(ticket, fetch_state::reading)) {
    fetches_[*fetch].state = fetch_state::verifying;
    out.push_back({kind::verify, target_, *fetch, ticket});
  }
  return out;
}

auto receiver_machine::fetch_failed(std::uint64_t ticket, const std::string& error, double now)
  -> actions {
  actions out;
  if (auto fetch = find(ticket, fetch_state::reading))
    again(*fetch, error, now, out);
  return out;
}

auto receiver_machine::verified(std::uint64_t ticket, bool intact, const std::string& where,
                                double now) -> actions {
  actions out;
  auto fetch = find(ticket, fetch_state::verifying);
  if (!fetch)
    return out;
  if (!intact) {
    again(*fetch, "wrong checksum of " + where, now, out);
    return out;
  }
  fetches_[*fetch].state = fetch_state::done;
  open_.erase(ticket);
  if (++done_ < fetches_.size()) {
    fill_window(out);
    return out;
  }
  state_ = state::ready;
  out.push_back({kind::ready, target_});
  out.push_back({kind::release_lease, target_});
  return out;
}

auto receiver_machine::lost(version v, const std::string& error, double now) -> actions {
  actions out;
  if ((state_ == state::pulling || state_ == state::leasing) && v == target_)
    fail(error, now, out);
  return out;
}

void receiver_machine::fail(const std::string& reason, double now, actions& out) {
  if (state_ == state::pulling)
    out.push_back({kind::cancel, target_});
  // Also while leasing: the grant may be under way.
  out.push_back({kind::release_lease, target_});
  out.push_back({kind::give_up, target_, 0, 0, reason});
  state_ = state::backoff;
  target_ = no_version;
  fetches_.clear();
  open_.clear();
  deadline_ = now + options_.retry_after_s;
}

auto receiver_machine::installed(version v, double now) -> actions {
  actions out;
  if (state_ != state::ready || v != target_)
    return out;
  installed_ = v;
  state_ = state::idle;
  target_ = no_version;
  out.push_back({kind::acknowledge, v});
  if (newest_ > v)
    ask(newest_, now, out);
  return out;
}

auto receiver_machine::tick(double now) -> actions {
  actions out;
  if (now < wake_at())
    return out;
  if (state_ == state::leasing)
    fail("no answer to the request for a lease on " + to_string(target_) + " within "
           + std::to_string(options_.lease_timeout_s) + " s",
         now, out);
  else if (state_ == state::pulling)
    fail(to_string(target_) + " was not complete within "
           + std::to_string(options_.pull_timeout_s) + " s: " + std::to_string(done_) + " of "
           + std::to_string(fetches_.size()) + " reads were proven",
         now, out);
  else if (state_ == state::backoff)
    ask(newest_, now, out);
  return out;
}

double receiver_machine::wake_at() const {
  bool timed = state_ == state::leasing || state_ == state::pulling || state_ == state::backoff;
  return timed ? deadline_ : std::numeric_limits<double>::infinity();
}

} // namespace millrace::weightsync
