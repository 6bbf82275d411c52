#include "rollout/ledger.hpp"

#include "runtime/error.hpp"

namespace millrace {

namespace {

/// Texts of programs and plugins are among the reasons: they must not grow without a limit.
constexpr std::size_t most_reasons = 500;

/// The stream only flows forward, but for a rollout that is generated or scored again.
bool may_follow(rollout_state from, rollout_state to) {
  using enum rollout_state;
  if (has_ended(from))
    return false;
  switch (to) {
    case running: return from == scoring || from == buffered || from == scored;
    case scoring: return from == running;
    case scored: return from == scoring;
    case buffered: return from == scored;
    case training: return from == buffered;
    case trained: return from == training;
    default: return from != training;
  }
}

} // namespace

std::string_view to_string(rollout_state s) {
  static constexpr std::array<std::string_view, rollout_state_count> names{
    "running", "scoring", "scored", "buffered", "training",
    "trained", "dropped", "filtered", "failed"};
  return names[static_cast<std::size_t>(s)];
}

std::int64_t ledger_totals::in_flight() const {
  std::int64_t n = 0;
  for (std::size_t s = 0; s < rollout_state_count; ++s)
    if (!has_ended(static_cast<rollout_state>(s)))
      n += in_state[s];
  return n;
}

bool ledger_totals::balanced() const {
  std::int64_t n = 0;
  for (auto c : in_state) {
    if (c < 0)
      return false;
    n += c;
  }
  return n == admitted;
}

void ledger::admit(rollout_id id) {
  auto& samples = groups_[id.group];
  ensure(id.sample == static_cast<std::int32_t>(samples.size()),
         [&] { return "rollout " + to_string(id) + " is admitted out of order"; });
  samples.push_back(rollout_state::running);
  ++totals_.admitted;
  ++totals_.in_state[static_cast<std::size_t>(rollout_state::running)];
}

void ledger::move(rollout_id id, rollout_state to, std::string_view reason) {
  auto from = state(id);
  ensure(may_follow(from, to), [&] {
    return "rollout " + to_string(id) + " cannot go from " + std::string(to_string(from)) + " to "
           + std::string(to_string(to));
  });
  groups_.find(id.group)->second[static_cast<std::size_t>(id.sample)] = to;
  --totals_.in_state[static_cast<std::size_t>(from)];
  ++totals_.in_state[static_cast<std::size_t>(to)];
  if (has_ended(to) && to != rollout_state::trained) {
    ensure(!reason.empty(), [&] { return "rollout " + to_string(id) + " ended without a reason"; });
    auto name = std::string(to_string(to)) + ": ";
    if (totals_.reasons.size() < most_reasons || totals_.reasons.contains(name + std::string(reason)))
      name += reason;
    else
      name += "other";
    ++totals_.reasons[name];
  }
}

bool ledger::knows(rollout_id id) const {
  auto it = groups_.find(id.group);
  return it != groups_.end() && id.sample >= 0
         && id.sample < static_cast<std::int32_t>(it->second.size());
}

rollout_state ledger::state(rollout_id id) const {
  ensure(knows(id), [&] { return "the ledger does not know rollout " + to_string(id); });
  return groups_.find(id.group)->second[static_cast<std::size_t>(id.sample)];
}

void ledger::forget(std::int64_t group) {
  auto it = groups_.find(group);
  if (it == groups_.end())
    return;
  for (auto s : it->second)
    ensure(has_ended(s), [&] {
      return "group " + std::to_string(group) + " is forgotten while a rollout is "
             + std::string(to_string(s));
    });
  groups_.erase(it);
}

void ledger::restore(ledger_totals totals) {
  groups_.clear();
  totals_ = std::move(totals);
  totals_.admitted -= totals_.in_flight();
  for (std::size_t s = 0; s < rollout_state_count; ++s)
    if (!has_ended(static_cast<rollout_state>(s)))
      totals_.in_state[s] = 0;
}

} // namespace millrace
