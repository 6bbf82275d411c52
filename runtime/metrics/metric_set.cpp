#include "runtime/metrics/metric_set.hpp"

#include "runtime/error.hpp"
#include "runtime/metrics/catalogue.hpp"

#include <algorithm>

namespace millrace {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;

std::size_t places(const std::vector<const metric_info*>& metrics, bool histograms) {
  std::size_t n = 0;
  for (const auto* m : metrics)
    if ((m->kind == metric_kind::histogram) == histograms)
      n = std::max(n, m->first + m->places());
  return n;
}

std::string label_of(const metric_info& m, std::size_t i) {
  return m.label.empty() ? std::string{} : m.label_values[i];
}

} // namespace

metric_set::metric_set(std::string owner)
  : owner_(std::move(owner)), metrics_(catalogue(owner_)), values_(places(metrics_, false)),
    histograms_(places(metrics_, true)) {
  for (const auto* m : metrics_)
    if (m->kind == metric_kind::histogram)
      for (std::size_t i = 0; i < m->places(); ++i)
        histograms_[m->first + i].counts
          = std::make_unique<std::atomic<std::uint64_t>[]>(m->bounds.size() + 1);
}

std::size_t metric_set::place(const metric& handle, std::string_view label) const {
  const auto& m = handle.info();
  const auto size = m.kind == metric_kind::histogram ? histograms_.size() : values_.size();
  ensure(m.owner == owner_ && m.first + m.places() <= size, [&] {
    return "metric " + m.name + " of " + m.owner + " used by " + owner_
           + " (or declared after this set was made)";
  });
  if (m.label.empty())
    return m.first;
  const auto at = std::find(m.label_values.begin(), m.label_values.end(), label);
  return m.first
         + std::min<std::size_t>(std::size_t(at - m.label_values.begin()), m.places() - 1);
}

void metric_set::add(const counter& m, double amount) { add(m, {}, amount); }

void metric_set::add(const counter& m, std::string_view label, double amount) {
  values_[place(m, label)].fetch_add(amount, relaxed);
}

void metric_set::set_total(const counter& m, std::string_view label, double total) {
  auto& value = values_[place(m, label)];
  value.store(std::max(value.load(relaxed), total), relaxed);
}

void metric_set::set(const gauge& m, double value) { set(m, {}, value); }

void metric_set::set(const gauge& m, std::string_view label, double value) {
  values_[place(m, label)].store(value, relaxed);
}

void metric_set::observe(const histogram& m, double value, std::uint64_t times) {
  observe(m, {}, value, times);
}

void metric_set::observe(const histogram& m, std::string_view label, double value,
                         std::uint64_t times) {
  auto& b = histograms_[place(m, label)];
  const auto& bounds = m.info().bounds;
  const auto at = std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin();
  b.counts[std::size_t(at)].fetch_add(times, relaxed);
  b.sum.fetch_add(value * double(times), relaxed);
}

void metric_set::set_keys(const std::map<std::string, double>& values) {
  for (const auto* m : metrics_)
    if (!m->key.empty())
      if (const auto at = values.find(m->key); at != values.end())
        values_[m->first].store(at->second, relaxed);
}

double metric_set::value(const counter& m, std::string_view label) const {
  return values_[place(m, label)].load(relaxed);
}

double metric_set::value(const gauge& m, std::string_view label) const {
  return values_[place(m, label)].load(relaxed);
}

void metric_set::snapshot(actor_snapshot& into) const {
  into.kind = owner_;
  for (const auto* m : metrics_)
    for (std::size_t i = 0; i < m->places(); ++i) {
      if (m->kind != metric_kind::histogram) {
        auto& list = m->kind == metric_kind::counter ? into.counters : into.gauges;
        list.push_back({m->name, label_of(*m, i), values_[m->first + i].load(relaxed)});
        continue;
      }
      const auto& b = histograms_[m->first + i];
      histogram_value h{m->name, label_of(*m, i), m->bounds, {}, b.sum.load(relaxed)};
      for (std::size_t k = 0; k <= m->bounds.size(); ++k)
        h.counts.push_back(b.counts[k].load(relaxed));
      into.histograms.push_back(std::move(h));
    }
}

} // namespace millrace
