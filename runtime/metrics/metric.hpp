#pragma once

// How a metric is declared: once, as a constant at namespace scope, that code then names when it
// counts. The declaration enters it into the catalogue, so that it is emitted even while it is zero.
//
//   inline const counter tokens_generated{
//     "generator", "millrace_tokens_generated_total", "tokens", "Tokens that were sampled"};
//
// Every actor of the owning kind has a metric_set with a place for each of its kind's metrics.

#include "runtime/introspection.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

enum class metric_kind : std::uint8_t { counter, gauge, histogram };

struct metric_info {
  metric_kind kind = metric_kind::counter;
  std::string owner; ///< kind of the actors that emit it
  std::string name;  ///< as Prometheus wants it: millrace_…, a counter ends in _total
  std::string unit;  ///< "seconds", "bytes", "tokens", "ratio", …
  std::string help;
  std::string label;                     ///< name of its own label, or empty
  std::vector<std::string> label_values; ///< all that there are, "other" for the rest
  std::vector<double> bounds;            ///< of a histogram: upper ends of its buckets, ascending
  std::string key;  ///< of a gauge: its name in a step's line of metrics.jsonl, or empty
  std::size_t first = 0; ///< its first place among its owner's values (or histograms)

  [[nodiscard]] std::size_t places() const {
    return label.empty() ? 1 : label_values.size();
  }
};

/// A label with all its values. Bounded, so that no input can make the exposition grow.
struct metric_label {
  std::string name;
  std::vector<std::string> values;
};

/// Where a metric stands in the catalogue. A name that is declared twice keeps its first place.
class metric {
public:
  [[nodiscard]] const metric_info& info() const { return *info_; }

protected:
  explicit metric(metric_info info);

private:
  const metric_info* info_;
};

/// Only grows, from 0 at the actor's start.
class counter : public metric {
public:
  counter(std::string owner, std::string name, std::string unit, std::string help,
          metric_label label = {})
    : metric({metric_kind::counter, std::move(owner), std::move(name), std::move(unit),
              std::move(help), std::move(label.name), std::move(label.values)}) {}
};

/// The present value of something.
class gauge : public metric {
public:
  gauge(std::string owner, std::string name, std::string unit, std::string help,
        std::string key = {}, metric_label label = {})
    : metric({metric_kind::gauge, std::move(owner), std::move(name), std::move(unit),
              std::move(help), std::move(label.name), std::move(label.values), {},
              std::move(key)}) {}
};

/// How often what was observed.
class histogram : public metric {
public:
  histogram(std::string owner, std::string name, std::string unit, std::string help,
            std::vector<double> bounds, metric_label label = {})
    : metric({metric_kind::histogram, std::move(owner), std::move(name), std::move(unit),
              std::move(help), std::move(label.name), std::move(label.values),
              std::move(bounds)}) {}
};

/// Buckets first, first·factor, …, `n` of them.
[[nodiscard]] std::vector<double> exponential_bounds(double first, double factor, std::size_t n);
/// Buckets 0, 1, …, last.
[[nodiscard]] std::vector<double> whole_bounds(int last);

/// Every metric declared in this process, in the order of declaration. Thread-safe.
[[nodiscard]] std::vector<const metric_info*> catalogue();
/// Those of one owner.
[[nodiscard]] std::vector<const metric_info*> catalogue(std::string_view owner);
/// By its name, or nullptr.
[[nodiscard]] const metric_info* find_metric(std::string_view name);
/// What is wrong with declarations (a plugin's, say): names that were taken or are not Prometheus'.
/// Empty when all is well.
[[nodiscard]] std::vector<std::string> catalogue_problems();

} // namespace millrace
