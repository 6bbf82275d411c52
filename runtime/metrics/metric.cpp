#include "runtime/metrics/metric.hpp"

#include "runtime/error.hpp"

#include <algorithm>
#include <cctype>
#include <deque>
#include <map>
#include <mutex>

namespace millrace {
namespace {

struct catalogue_data {
  std::mutex mutex;
  std::deque<metric_info> metrics; // addresses stay
  std::map<std::string, std::size_t, std::less<>> values, histograms; // places taken, by owner
  std::vector<std::string> problems;
};

/// Made at the first declaration, before main; never destroyed, since actors may outlive statics.
catalogue_data& data() {
  static auto* d = new catalogue_data;
  return *d;
}

std::string problem_with(const metric_info& m) {
  const bool letters = std::all_of(m.name.begin(), m.name.end(), [](unsigned char c) {
    return std::islower(c) || std::isdigit(c) || c == '_';
  });
  if (m.name.empty() || !letters || std::isdigit(static_cast<unsigned char>(m.name[0])))
    return "a name consists of a-z, 0-9 and _";
  if (m.name.ends_with("_total") != (m.kind == metric_kind::counter))
    return "the name of a counter, and of nothing else, ends in _total";
  if (m.help.empty() || m.owner.empty())
    return "help and owner can't be empty";
  if (!m.label.empty() && m.label_values.empty())
    return "its label has no values";
  if (m.kind == metric_kind::histogram
      && (m.bounds.empty() || !std::is_sorted(m.bounds.begin(), m.bounds.end())))
    return "its buckets must ascend";
  return {};
}

} // namespace

metric::metric(metric_info info) {
  auto& d = data();
  std::lock_guard lock(d.mutex);
  for (const auto& m : d.metrics)
    if (m.name == info.name && m.owner == info.owner && m.kind == info.kind
        && m.label_values == info.label_values && m.bounds == info.bounds) {
      info_ = &m; // the same constant in two libraries
      return;
    } else if (m.name == info.name) {
      d.problems.push_back("metric " + info.name + ": declared twice, differently");
    }
  if (auto text = problem_with(info); !text.empty())
    d.problems.push_back("metric " + info.name + ": " + text);
  auto& taken = (info.kind == metric_kind::histogram ? d.histograms : d.values)[info.owner];
  info.first = taken;
  taken += info.places();
  d.metrics.push_back(std::move(info));
  info_ = &d.metrics.back();
}

std::vector<double> exponential_bounds(double first, double factor, std::size_t n) {
  std::vector<double> out;
  for (double x = first; out.size() < n; x *= factor)
    out.push_back(x);
  return out;
}

std::vector<double> whole_bounds(int last) {
  std::vector<double> out;
  for (int i = 0; i <= last; ++i)
    out.push_back(i);
  return out;
}

std::vector<const metric_info*> catalogue() {
  auto& d = data();
  std::lock_guard lock(d.mutex);
  std::vector<const metric_info*> out;
  for (const auto& m : d.metrics)
    out.push_back(&m);
  return out;
}

std::vector<const metric_info*> catalogue(std::string_view owner) {
  auto all = catalogue();
  std::erase_if(all, [&](const metric_info* m) { return m->owner != owner; });
  return all;
}

const metric_info* find_metric(std::string_view name) {
  auto& d = data();
  std::lock_guard lock(d.mutex);
  const auto at = std::find_if(d.metrics.begin(), d.metrics.end(),
                               [&](const metric_info& m) { return m.name == name; });
  return at == d.metrics.end() ? nullptr : &*at;
}

std::vector<std::string> catalogue_problems() {
  auto& d = data();
  std::lock_guard lock(d.mutex);
  return d.problems;
}

} // namespace millrace
