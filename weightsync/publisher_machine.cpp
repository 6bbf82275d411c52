#include "weightsync/publisher_machine.hpp"

#include "runtime/error.hpp"

#include <algorithm>

namespace millrace::weightsync {

publisher_machine::publisher_machine(std::size_t slots, double lease_s)
  : slots_(slots), lease_s_(lease_s) {
  ensure(slots >= 2, "a publisher needs two slots at least, not " + std::to_string(slots));
}

bool publisher_machine::leased(std::size_t slot) const {
  return std::any_of(leases_.begin(), leases_.end(),
                     [&](const auto& l) { return l.second.slot == slot; });
}

void publisher_machine::free_retired() {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].state == slot_state::retiring && !leased(i))
      slots_[i] = {};
}

std::optional<std::size_t> publisher_machine::begin(version v, double now) {
  ensure(v > newest_begun_, [&] {
    return "publishing " + to_string(v) + " after " + to_string(newest_begun_);
  });
  tick(now);
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].state == slot_state::free) {
      slots_[i] = {slot_state::filling, v};
      newest_begun_ = v;
      return i;
    }
  return std::nullopt;
}

void publisher_machine::commit(std::size_t slot, double now) {
  ensure(slot < slots_.size() && slots_[slot].state == slot_state::filling,
         [&] { return "commit of slot " + std::to_string(slot) + ", which isn't being filled"; });
  tick(now);
  for (auto& s : slots_)
    if (s.state == slot_state::current)
      s.state = slot_state::retiring;
  slots_[slot].state = slot_state::current;
  current_ = slots_[slot].number;
  free_retired();
}

void publisher_machine::abandon(std::size_t slot) {
  ensure(slot < slots_.size() && slots_[slot].state == slot_state::filling,
         [&] { return "abandon of slot " + std::to_string(slot) + ", which isn't being filled"; });
  slots_[slot] = {};
}

lease publisher_machine::acquire(const std::string& receiver, version v, double now) {
  tick(now);
  auto slot = current_slot();
  if (!slot || v != current_)
    return {0, current_, 0};
  for (auto& [id, held] : leases_)
    if (held.receiver == receiver && held.slot == *slot) {
      held.deadline = now + lease_s_;
      return {id, v, held.deadline};
    }
  auto id = next_lease_++;
  leases_[id] = {id, receiver, *slot, v, now, now + lease_s_};
  return {id, v, now + lease_s_};
}

bool publisher_machine::renew(lease_id id, double now) {
  tick(now);
  auto it = leases_.find(id);
  if (it == leases_.end())
    return false;
  it->second.deadline = now + lease_s_;
  return true;
}

bool publisher_machine::release(lease_id id, double now) {
  tick(now);
  bool held = leases_.erase(id) > 0;
  free_retired();
  return held;
}

void publisher_machine::forget(const std::string& receiver, double now) {
  tick(now);
  std::erase_if(leases_, [&](const auto& l) { return l.second.receiver == receiver; });
  acknowledged_.erase(receiver);
  free_retired();
}

std::vector<held_lease> publisher_machine::tick(double now) {
  std::vector<held_lease> ended;
  std::erase_if(leases_, [&](const auto& l) {
    if (l.second.deadline > now)
      return false;
    ended.push_back(l.second);
    return true;
  });
  expired_ += ended.size();
  free_retired();
  return ended;
}

void publisher_machine::acknowledge(const std::string& receiver, version v) {
  auto [it, fresh] = acknowledged_.try_emplace(receiver, v);
  it->second = std::max(it->second, v);
}

version publisher_machine::acknowledged(const std::string& receiver) const {
  auto it = acknowledged_.find(receiver);
  return it == acknowledged_.end() ? no_version : it->second;
}

std::optional<std::size_t> publisher_machine::current_slot() const {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].state == slot_state::current)
      return i;
  return std::nullopt;
}

double publisher_machine::blocked_until(double now) const {
  double earliest = -1;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].state == slot_state::free)
      return now;
    if (slots_[i].state != slot_state::retiring)
      continue;
    double ends = now;
    for (const auto& [id, held] : leases_)
      if (held.slot == i)
        ends = std::max(ends, held.deadline);
    earliest = earliest < 0 ? ends : std::min(earliest, ends);
  }
  return earliest < 0 ? now : earliest;
}

} // namespace millrace::weightsync
