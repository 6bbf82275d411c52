#pragma once

// What an actor says of itself when it is asked: the answer to the one introspection request.

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

/// One counter or gauge. Its unit and meaning are in the catalogue (runtime/metrics/catalogue.hpp).
struct metric_value {
  std::string name;
  std::string label; ///< value of the metric's own label ("stale"), empty when it has none
  double value = 0;

  template <class I>
  friend typename I::result_type inspect(I& f, metric_value& x) {
    return f(x.name, x.label, x.value);
  }
};

/// One histogram. Observations up to and with bounds[i] are in counts[i] (and in no other); the last
/// entry of counts holds those beyond all bounds.
struct histogram_value {
  std::string name;
  std::string label;
  std::vector<double> bounds;
  std::vector<std::uint64_t> counts; ///< one more than bounds
  double sum = 0;

  [[nodiscard]] std::uint64_t count() const {
    std::uint64_t n = 0;
    for (auto c : counts)
      n += c;
    return n;
  }

  template <class I>
  friend typename I::result_type inspect(I& f, histogram_value& x) {
    return f(x.name, x.label, x.bounds, x.counts, x.sum);
  }
};

/// An actor as it is now.
struct actor_snapshot {
  std::string kind;      ///< "generator", "trainer", "controller", …
  std::string name;      ///< unique in its node: "generator-0"
  std::string node;      ///< the process that it lives in
  std::string state;     ///< "decoding", "waiting", "training", …
  std::string waits_for; ///< the actor or kind of actors that it waits for, empty while it works
  std::string reason;    ///< what for: "a batch of 64 to leave v12"
  double since = 0;      ///< seconds that it has been in this state, or has waited for this
  double silent = 0;     ///< seconds since it last took a message: more than 2 means busy, or stuck
  std::int64_t mailbox = 0; ///< messages that wait for it
  std::vector<metric_value> counters;
  std::vector<metric_value> gauges;
  std::vector<histogram_value> histograms;

  template <class I>
  friend typename I::result_type inspect(I& f, actor_snapshot& x) {
    return f(x.kind, x.name, x.node, x.state, x.waits_for, x.reason, x.since, x.silent, x.mailbox,
             x.counters, x.gauges, x.histograms);
  }
};

} // namespace millrace
