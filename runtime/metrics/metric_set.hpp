#pragma once

#include "runtime/metrics/metric.hpp"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

namespace millrace {

/// The values of one actor: one for each metric of its kind. Counting is a relaxed atomic addition,
/// so that a scrape from another thread disturbs nobody; a snapshot is not one instant's across
/// metrics. A metric of another kind's is an invariant_error.
class metric_set {
public:
  explicit metric_set(std::string owner);

  void add(const counter& m, double amount = 1);
  /// `label` not among the declared values counts as the last of them ("other").
  void add(const counter& m, std::string_view label, double amount);
  /// For a counter whose total is kept elsewhere. Never lowers it. By one thread at a time.
  void set_total(const counter& m, double total) { set_total(m, {}, total); }
  void set_total(const counter& m, std::string_view label, double total);
  void set(const gauge& m, double value);
  void set(const gauge& m, std::string_view label, double value);
  /// `times` observations of the same value.
  void observe(const histogram& m, double value, std::uint64_t times = 1);
  void observe(const histogram& m, std::string_view label, double value, std::uint64_t times = 1);

  /// Sets every gauge whose key in metrics.jsonl is there.
  void set_keys(const std::map<std::string, double>& values);

  [[nodiscard]] double value(const counter& m, std::string_view label = {}) const;
  [[nodiscard]] double value(const gauge& m, std::string_view label = {}) const;

  /// Fills counters, gauges and histograms of `into`, and its kind.
  void snapshot(actor_snapshot& into) const;

private:
  struct buckets {
    std::unique_ptr<std::atomic<std::uint64_t>[]> counts;
    std::atomic<double> sum{0};
  };

  std::size_t place(const metric& m, std::string_view label) const;

  std::string owner_;
  std::vector<const metric_info*> metrics_;
  std::vector<std::atomic<double>> values_;
  std::vector<buckets> histograms_;
};

} // namespace millrace
