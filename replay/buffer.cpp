#include "replay/buffer.hpp"

#include "runtime/error.hpp"

#include <algorithm>

namespace millrace {

replay_buffer::replay_buffer(buffer_options options) : options_(options) {
  const auto& o = options_;
  ensure(o.group_size >= 1 && o.eta >= 0, [&] {
    return "replay buffer with n = " + std::to_string(o.group_size) + ", η = "
           + std::to_string(o.eta);
  });
  if (o.batch_size < o.group_size)
    throw user_error("rollout.batch_size: " + std::to_string(o.batch_size)
                     + " rollouts can't hold a group of rollout.group_size = "
                     + std::to_string(o.group_size) + "; make it a multiple of that");
  if (o.capacity < o.batch_size)
    throw user_error("replay.capacity: " + std::to_string(o.capacity)
                     + " rollouts can never fill a batch of rollout.batch_size = "
                     + std::to_string(o.batch_size) + "; give it at least (eta + 1) * batch_size = "
                     + std::to_string((o.eta + 1) * o.batch_size));
  if (o.over_bound == over_bound::wait && o.capacity < (o.eta + 1) * o.batch_size)
    throw user_error("replay.capacity: " + std::to_string(o.capacity)
                     + " rollouts are too few for rollout.over_bound \"wait\": the rollout waited "
                       "for may find the buffer full. Give it at least (eta + 1) * batch_size = "
                     + std::to_string((o.eta + 1) * o.batch_size)
                     + ", or choose \"mask\" or \"drop\"");
}

// -- in -------------------------------------------------------------------------------------------

replay_buffer::entry replay_buffer::make_entry(std::shared_ptr<const scored_group> group) {
  entry e;
  e.oldest = e.youngest = no_version.value;
  e.ages.reserve(group->rollouts.size());
  for (const auto& r : group->rollouts) {
    ensure(r.id.group == group->group && r.tokens.size() == r.versions.size()
             && r.tokens.size() == r.behaviour_logp.size(),
           [&] {
             return "rollout " + to_string(r.id) + " in group " + std::to_string(group->group)
                    + ": " + std::to_string(r.tokens.size()) + " tokens, "
                    + std::to_string(r.versions.size()) + " versions, "
                    + std::to_string(r.behaviour_logp.size()) + " log-probs";
           });
    const age a{r.oldest().value, r.youngest().value};
    e.ages.push_back(a);
    if (a.oldest >= 0 && (e.oldest < 0 || a.oldest < e.oldest))
      e.oldest = a.oldest;
    e.youngest = std::max(e.youngest, a.youngest);
  }
  e.group = std::move(group);
  return e;
}

insert_result replay_buffer::insert(scored_group group) {
  const auto size = static_cast<std::int64_t>(group.rollouts.size());
  ensure(size >= 1 && size <= options_.group_size, [&] {
    return "group " + std::to_string(group.group) + " has " + std::to_string(size)
           + " rollouts, expected 1 to " + std::to_string(options_.group_size);
  });
  if (known_.contains(group.group)) {
    ++counters_.already_known;
    return insert_result::already_known;
  }
  if (size > room()) {
    ++counters_.refused;
    return insert_result::full;
  }
  readmit(std::move(group));
  return insert_result::inserted;
}

void replay_buffer::readmit(scored_group group) {
  const auto id = group.group;
  ensure(!known_.contains(id), [&] { return "group " + std::to_string(id) + " inserted twice"; });
  auto e = make_entry(std::make_shared<const scored_group>(std::move(group)));
  known_.insert(id);
  counters_.inserted += static_cast<std::int64_t>(e.ages.size());
  enqueue(id, std::move(e));
}

void replay_buffer::enqueue(std::int64_t group, entry e) {
  tally(e, +1);
  if (e.oldest < swept_to_)
    late_.push_back(group);
  order_.emplace(e.oldest, group);
  waiting_.emplace(group, std::move(e));
}

replay_buffer::entry replay_buffer::dequeue(std::int64_t group) {
  auto node = waiting_.extract(group);
  ensure(!node.empty(), [&] { return "group " + std::to_string(group) + " is not waiting"; });
  order_.erase({node.mapped().oldest, group});
  tally(node.mapped(), -1);
  return std::move(node.mapped());
}

void replay_buffer::tally(const entry& e, std::int64_t by) {
  auto add = [by](std::map<std::int32_t, std::int64_t>& counts, std::int32_t at) {
    if ((counts[at] += by) == 0)
      counts.erase(at);
  };
  depth_ += by * static_cast<std::int64_t>(e.ages.size());
  for (const auto& a : e.ages)
    if (a.oldest >= 0) {
      add(oldest_, a.oldest);
      add(youngest_, a.youngest);
      add(spans_, a.youngest - a.oldest);
    }
}

// -- out ------------------------------------------------------------------------------------------

bool replay_buffer::must_go(const entry& e, std::int32_t bound) const {
  if (e.youngest < 0)
    return true; // nothing was sampled: there is nothing to train on
  return options_.over_bound == over_bound::drop ? e.oldest < bound : e.youngest < bound;
}

/// Drops what η forbids at `from`. Looks at each group once per bound: those below it, from the
/// front of the order, and those that came in below it since.
void replay_buffer::sweep(version from) {
  const auto bound = from.value - options_.eta;
  std::vector<std::int64_t> gone;
  if (bound > swept_to_) {
    for (auto it = order_.begin(); it != order_.end() && it->first < bound; ++it)
      if (must_go(waiting_.at(it->second), bound))
        gone.push_back(it->second);
    swept_to_ = bound;
  } else {
    for (auto group : late_)
      if (auto it = waiting_.find(group); it != waiting_.end() && must_go(it->second, bound))
        gone.push_back(group);
  }
  if (bound >= swept_to_)
    late_.clear();
  drop(gone);
}

void replay_buffer::drop(std::span<const std::int64_t> groups) {
  for (auto group : groups)
    if (waiting_.contains(group)) {
      counters_.dropped += static_cast<std::int64_t>(dequeue(group).ages.size());
      dropped_.push_back(group);
    }
}

std::vector<rollout_id> replay_buffer::due(version from,
                                           std::span<const in_flight_rollout> in_flight) const {
  std::vector<rollout_id> late;
  if (options_.over_bound != over_bound::wait)
    return late;
  const auto bound = from.value - options_.eta;
  for (const auto& r : in_flight)
    if (r.oldest != no_version && r.oldest.value <= bound)
      late.push_back(r.id);
  if (late.empty())
    return late;
  // As many as a batch that are at least as old are here: waiting would not get the others in.
  std::int64_t older = 0;
  for (auto it = order_.begin(); it != order_.end() && it->first <= bound; ++it)
    if ((older += static_cast<std::int64_t>(waiting_.at(it->second).ages.size()))
        >= options_.batch_size)
      return {};
  std::sort(late.begin(), late.end());
  return late;
}

std::vector<std::int64_t> replay_buffer::oldest_batch() const {
  std::vector<std::int64_t> groups;
  std::int64_t rollouts = 0;
  for (auto [oldest, group] : order_) {
    rollouts += static_cast<std::int64_t>(waiting_.at(group).ages.size());
    // A run that was resumed with smaller batches still has to train its larger groups.
    if (rollouts > options_.batch_size && !groups.empty())
      break;
    groups.push_back(group);
    if (rollouts >= options_.batch_size)
      break;
  }
  return groups;
}

hand_out_result replay_buffer::hand_out(version from,
                                        std::span<const in_flight_rollout> in_flight) {
  using enum hand_out_result::state;
  hand_out_result result;
  if (from <= last_confirmed_) {
    result.what = outdated;
  } else if (out_) {
    result.what = out_->from == from ? ready : unconfirmed;
    result.batch = out_;
  } else {
    sweep(from);
    if (auto late = due(from, in_flight); !late.empty()) {
      ++counters_.waits;
      result.what = waiting;
      result.wait_for = std::move(late);
    } else if (depth_ + options_.group_size <= options_.batch_size) {
      const auto whole = options_.batch_size / options_.group_size * options_.group_size;
      result.missing = whole - depth_;
    } else {
      adopt(from, oldest_batch());
      result.what = ready;
      result.batch = out_;
    }
  }
  result.dropped = dropped_;
  return result;
}

void replay_buffer::mask_old_tokens(training_batch& batch, const entry& e) const {
  const auto bound = batch.oldest_trained.value;
  for (std::size_t i = 0; i < e.ages.size(); ++i) {
    if (e.ages[i].oldest < 0 || e.ages[i].oldest >= bound)
      continue;
    const auto& r = e.group->rollouts[i];
    masked_rollout m{r.id, {}};
    for (std::int32_t t = 0; t < static_cast<std::int32_t>(r.versions.size()); ++t) {
      const auto v = r.versions[static_cast<std::size_t>(t)];
      if (v < 0 || v >= bound)
        continue;
      ++batch.masked_tokens;
      if (!m.spans.empty() && m.spans.back().end == t)
        ++m.spans.back().end;
      else
        m.spans.push_back({t, t + 1});
    }
    batch.masked.push_back(std::move(m));
  }
}

std::vector<std::int64_t> replay_buffer::adopt(version from,
                                               std::span<const std::int64_t> groups) {
  take_back();
  std::vector<std::int64_t> missing;
  for (auto group : groups)
    if (!waiting_.contains(group))
      missing.push_back(group);
  if (!missing.empty())
    return missing;
  auto batch = std::make_shared<training_batch>();
  batch->from = from;
  batch->oldest_trained = {std::max(0, from.value - options_.eta)};
  for (auto group : groups) {
    auto e = dequeue(group);
    ensure(e.youngest <= from.value, [&] {
      return "group " + std::to_string(group) + " has a token of version "
             + std::to_string(e.youngest) + ", handed out for training from "
             + std::to_string(from.value);
    });
    batch->rollouts += static_cast<std::int64_t>(e.ages.size());
    mask_old_tokens(*batch, e);
    batch->groups.push_back(std::move(e.group));
  }
  out_ = std::move(batch);
  return missing;
}

bool replay_buffer::confirmed(version from) {
  if (!out_ || out_->from != from)
    return from <= last_confirmed_;
  counters_.confirmed += out_->rollouts;
  counters_.masked += static_cast<std::int64_t>(out_->masked.size());
  counters_.masked_tokens += out_->masked_tokens;
  last_confirmed_ = from;
  out_.reset();
  dropped_.clear();
  return true;
}

// -- recovery -------------------------------------------------------------------------------------

bool replay_buffer::take_back() {
  if (!out_)
    return false;
  const auto batch = std::move(out_);
  out_.reset();
  for (const auto& group : batch->groups)
    enqueue(group->group, make_entry(group));
  return true;
}

void replay_buffer::resume(version from) {
  if (out_ && out_->from < from)
    confirmed(out_->from);
  else
    take_back();
  std::vector<std::int64_t> lost;
  for (const auto& [oldest, group] : order_)
    if (waiting_.at(group).youngest > from.value)
      lost.push_back(group);
  drop(lost);
  last_confirmed_ = version{from.value - 1};
  // The bound may have gone back with the version. Groups without a sampled token are below any.
  swept_to_ = 0;
  late_.clear();
  for (auto it = order_.begin(); it != order_.end() && it->first < 0; ++it)
    late_.push_back(it->second);
}

staleness_histogram replay_buffer::staleness_if_trained(version now) const {
  staleness_histogram h;
  for (auto [v, n] : oldest_)
    h.head[staleness(now, version{v})] += n;
  for (auto [v, n] : youngest_)
    h.tail[staleness(now, version{v})] += n;
  h.span = spans_;
  return h;
}

std::vector<std::int64_t> replay_buffer::waiting_groups() const {
  std::vector<std::int64_t> groups;
  for (auto [oldest, group] : order_)
    groups.push_back(group);
  return groups;
}

} // namespace millrace
