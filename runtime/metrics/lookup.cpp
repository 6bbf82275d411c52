#include "runtime/metrics/lookup.hpp"

#include <algorithm>

namespace millrace {
namespace {

template <class Visit>
void for_each_value(std::span<const actor_snapshot> actors, const metric& m, std::string_view label,
                    Visit visit) {
  const auto& info = m.info();
  for (const auto& a : actors) {
    if (a.kind != info.owner)
      continue;
    for (const auto& v : info.kind == metric_kind::counter ? a.counters : a.gauges)
      if (v.name == info.name && (label.empty() || v.label == label))
        visit(v.value);
  }
}

} // namespace

double total(std::span<const actor_snapshot> actors, const metric& m, std::string_view label) {
  double sum = 0;
  for_each_value(actors, m, label, [&](double x) { sum += x; });
  return sum;
}

double mean(std::span<const actor_snapshot> actors, const metric& m, std::string_view label) {
  double sum = 0, n = 0;
  for_each_value(actors, m, label, [&](double x) { sum += x, n += 1; });
  return n > 0 ? sum / n : 0;
}

double largest(std::span<const actor_snapshot> actors, const metric& m, std::string_view label) {
  double out = 0;
  bool any = false;
  for_each_value(actors, m, label, [&](double x) {
    out = any ? std::max(out, x) : x;
    any = true;
  });
  return out;
}

histogram_value merged(std::span<const actor_snapshot> actors, const histogram& m,
                       std::string_view label) {
  const auto& info = m.info();
  histogram_value out{info.name, std::string(label), info.bounds,
                      std::vector<std::uint64_t>(info.bounds.size() + 1), 0};
  for (const auto& a : actors)
    for (const auto& h : a.histograms) {
      if (a.kind != info.owner || h.name != info.name || (!label.empty() && h.label != label)
          || h.counts.size() != out.counts.size())
        continue;
      for (std::size_t i = 0; i < h.counts.size(); ++i)
        out.counts[i] += h.counts[i];
      out.sum += h.sum;
    }
  return out;
}

const actor_snapshot* first_of(std::span<const actor_snapshot> actors, std::string_view kind) {
  const auto at = std::find_if(actors.begin(), actors.end(),
                               [&](const actor_snapshot& a) { return a.kind == kind; });
  return at == actors.end() ? nullptr : &*at;
}

} // namespace millrace
