#include "actors/stall_watch.hpp"

#include "runtime/metrics/catalogue.hpp"
#include "runtime/metrics/lookup.hpp"

#include <algorithm>
#include <cstdio>
#include <set>

namespace millrace {

namespace {

std::string seconds(double s) {
  char text[32];
  std::snprintf(text, sizeof text, s < 10 ? "%.1f s" : "%.0f s", s);
  return text;
}

/// Whom a wait points at: by name; else of a kind ("generators": generator) the one that has worked
/// longest, since the others wait for work.
const actor_snapshot* target(std::span<const actor_snapshot> actors, const std::string& on) {
  for (const auto& a : actors)
    if (a.name == on)
      return &a;
  const actor_snapshot* best = nullptr;
  for (const auto& a : actors) {
    if (a.kind != on && a.kind + "s" != on)
      continue;
    auto better = [&] {
      if (a.waits_for.empty() != best->waits_for.empty())
        return a.waits_for.empty();
      return a.since > best->since;
    };
    if (best == nullptr || better())
      best = &a;
  }
  return best;
}

/// With its node where it could be taken for another.
std::string full_name(const actor_snapshot& a, bool many_nodes) {
  return many_nodes && !a.name.starts_with(a.node + "/") ? a.node + "/" + a.name : a.name;
}

wait_edge edge_of(const actor_snapshot& a, bool many_nodes) {
  return {full_name(a, many_nodes), a.state, a.waits_for, a.reason, a.since, a.silent};
}

/// Every actor is asked for a sign of life each second; it may be late while it works at something,
/// not while it waits.
bool mute(const actor_snapshot& a) {
  return a.silent > 5 && !(a.waits_for.empty() && a.since >= a.silent - 2);
}

std::string rollouts_of(const actor_snapshot& controller) {
  std::string out;
  for (const auto& v : controller.gauges)
    if (v.name == metrics::rollouts_in_state.info().name)
      out += (out.empty() ? "" : ", ") + std::to_string(static_cast<long long>(v.value)) + " "
             + v.label;
  out += "; ended:";
  bool any = false;
  for (const auto& v : controller.counters)
    if (v.name == metrics::rollouts_ended.info().name && v.value > 0) {
      out += (any ? ", " : " ") + std::to_string(static_cast<long long>(v.value)) + " " + v.label;
      any = true;
    }
  return out + (any ? "" : " none");
}

} // namespace

stall_report wait_graph(std::span<const actor_snapshot> actors) {
  stall_report out;
  std::set<const actor_snapshot*> told;
  const bool many = std::any_of(actors.begin(), actors.end(), [&](const actor_snapshot& a) {
    return a.node != actors.front().node;
  });
  const auto* at = first_of(actors, "trainer");
  if (at != nullptr)
    out.steps = static_cast<std::int64_t>(total(actors, metrics::steps_trained));
  else
    out.root = "there is no trainer";
  while (at != nullptr) {
    if (!told.insert(at).second) {
      out.root = "a circle: " + at->name + " waits for itself in the end";
      break;
    }
    out.waits.push_back(edge_of(*at, many));
    if (mute(*at)) {
      out.root = full_name(*at, many) + " gives no sign of life for " + seconds(at->silent)
                 + "; its process hangs, or is out of reach";
      break;
    }
    if (at->waits_for.empty()) {
      out.root = at->name + " is " + at->state + " for " + seconds(at->since);
      if (at->silent > 5 && at->since > 5)
        out.root += ", without taking a message for " + seconds(at->silent);
      break;
    }
    const auto* next = target(actors, at->waits_for);
    if (next == nullptr)
      out.root = "no actor answers to \"" + at->waits_for + "\"";
    at = next;
  }
  for (const auto& a : actors) {
    const bool lost = a.kind == "process" && a.state == "no answer";
    if (lost || (a.kind != "process" && !told.contains(&a) && (!a.waits_for.empty() || mute(a))))
      out.waits.push_back(edge_of(a, many));
  }
  if (const auto* controller = first_of(actors, "controller"))
    out.rollouts = rollouts_of(*controller);
  return out;
}

std::string stall_report::text() const {
  auto out = "nothing was trained for " + seconds(idle_s) + " ("
             + (steps == 0 ? std::string("no step so far")
                           : std::to_string(steps) + (steps == 1 ? " step" : " steps") + " so far")
             + ")\n";
  std::size_t width = 0;
  for (const auto& w : waits)
    width = std::max(width, w.owner.size());
  for (const auto& w : waits) {
    out += "  " + w.owner + std::string(width - w.owner.size() + 2, ' ');
    if (w.on.empty())
      out += w.state + " for " + seconds(w.age);
    else
      out += "waits " + seconds(w.age) + " for " + w.on + ": " + w.reason;
    if (w.silent > 5)
      out += "; took no message for " + seconds(w.silent);
    out += "\n";
  }
  out += "in the end: " + root;
  if (!rollouts.empty())
    out += "\nrollouts: " + rollouts;
  return out;
}

std::optional<stall_report> stall_watch::look(std::span<const actor_snapshot> actors, double now) {
  looked_at_ = now;
  auto steps = total(actors, metrics::steps_trained);
  if (steps != steps_) {
    steps_ = steps;
    progress_at_ = now;
    next_report_s_ = 0;
  }
  if (!stalled() || idle_s() < next_report_s_)
    return std::nullopt;
  next_report_s_ = 2 * std::max(idle_s(), limit_s_);
  auto out = wait_graph(actors);
  out.idle_s = idle_s();
  return out;
}

} // namespace millrace
