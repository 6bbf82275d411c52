#include "actors/controller_metrics.hpp"

#include "runtime/metrics/catalogue.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace millrace {

namespace {

using enum rollout_state;

void show_totals(metric_set& into, const ledger_totals& t, const controller_options& o) {
  into.set_total(metrics::rollouts_admitted, static_cast<double>(t.admitted));
  for (auto s : {trained, dropped, filtered, failed})
    into.set_total(metrics::rollouts_ended, to_string(s), static_cast<double>(t.count(s)));
  for (auto s : {running, scoring, scored, buffered, training})
    into.set(metrics::rollouts_in_state, to_string(s), static_cast<double>(t.count(s)));
  std::map<std::string_view, double> by_reason;
  for (const auto& [reason, count] : t.reasons) {
    if (!reason.starts_with("dropped: "))
      continue;
    std::string_view why = reason;
    why.remove_prefix(9);
    auto label = why == "a sibling failed" ? "sibling failed" : why;
    const auto& known = metrics::rollouts_dropped.info().label_values;
    by_reason[std::find(known.begin(), known.end(), label) == known.end() ? "other" : label]
      += static_cast<double>(count);
  }
  for (const auto& [label, count] : by_reason)
    into.set_total(metrics::rollouts_dropped, label, count);
  if (o.filter_zero_variance) // those that were filtered were never joined
    into.set_total(metrics::zero_variance_groups, static_cast<double>(t.count(filtered) / o.group_size));
}

void show_flight(metric_set& into, const rollout_controller& c) {
  auto now = c.published_version();
  std::array<double, 10> by_staleness{};
  std::int32_t head = 0, tail = 0, span = 0;
  bool any = false;
  for (const auto& r : c.in_flight()) {
    auto oldest = std::max(0, staleness(now, r.oldest));
    by_staleness[static_cast<std::size_t>(std::min(oldest, 9))] += 1;
    head = std::max(head, oldest);
    if (r.youngest == no_version)
      continue;
    auto youngest = std::max(0, staleness(now, r.youngest));
    tail = any ? std::min(tail, youngest) : youngest;
    span = std::max(span, oldest - youngest);
    any = true;
  }
  for (std::size_t i = 0; i < by_staleness.size(); ++i)
    into.set(metrics::in_flight_by_staleness, metrics::staleness_label(static_cast<std::int64_t>(i)),
             by_staleness[i]);
  into.set(metrics::in_flight_staleness, "head", head);
  into.set(metrics::in_flight_staleness, "tail", tail);
  into.set(metrics::in_flight_staleness, "span", span);
}

} // namespace

void show_controller(metric_set& into, const rollout_controller& c, const controller_options& o) {
  show_totals(into, c.totals(), o);
  show_flight(into, c);
  into.set(metrics::admission_outstanding, static_cast<double>(c.load().outstanding()));
  into.set(metrics::admission_budget,
           static_cast<double>((std::int64_t{o.limits.eta} + 1) * o.limits.batch_size));
  into.set(metrics::generators_up, static_cast<double>(std::count_if(
                                     c.generators().begin(), c.generators().end(),
                                     [](const generator_load& g) { return g.up; })));
  into.set(metrics::stream_version, c.published_version().value);
}

void count_rewards(metric_set& into, std::span<const scored_group> groups) {
  double sum = 0, squares = 0, n = 0;
  for (const auto& g : groups) {
    bool same = true;
    for (const auto& r : g.rollouts) {
      sum += r.reward;
      squares += double{r.reward} * r.reward;
      n += 1;
      same = same && r.reward == g.rollouts.front().reward;
    }
    if (same && g.rollouts.size() > 1)
      into.add(metrics::zero_variance_groups);
  }
  if (n == 0)
    return;
  into.set(metrics::group_reward, "mean", sum / n);
  into.set(metrics::group_reward, "std", std::sqrt(std::max(0.0, squares / n - sum / n * (sum / n))));
}

wait_reason controller_wait(const rollout_controller& c, const admission_limits& limits) {
  if (c.waits_for().empty())
    return {};
  const auto& t = c.totals();
  auto rollouts = [](std::int64_t n, const char* where) {
    return std::to_string(n) + " rollout" + (n == 1 ? " " : "s ") + where;
  };
  if (t.count(training) > 0 || t.count(buffered) >= limits.batch_size)
    return {"trainer", to_string(c.published_version().next()) + " to be published ("
                         + rollouts(c.load().outstanding(), "outstanding") + ", budget "
                         + std::to_string((limits.eta + 1) * limits.batch_size) + ")"};
  std::string busy;
  std::int64_t at_work = 0, up = 0;
  for (std::size_t i = 0; i < c.generators().size(); ++i) {
    const auto& g = c.generators()[i];
    up += g.up ? 1 : 0;
    if (!g.up || g.rollouts == 0)
      continue;
    busy = at_work == 0 ? c.generator_name(i) : "generators";
    at_work += g.rollouts;
  }
  if (at_work > 0)
    return {busy, rollouts(at_work, "to finish")};
  if (t.count(scoring) > 0)
    return {"rewards", rollouts(t.count(scoring), "to be scored")};
  if (up == 0)
    return {"generators", "one to join (none is up)"};
  return {"generators", "one with room that has acknowledged the newest weights"};
}

} // namespace millrace
