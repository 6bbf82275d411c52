#pragma once

#include "runtime/introspection.hpp"

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <deque>
#include <span>
#include <vector>

namespace millrace {

/// What the whole stream does, per second, over the last ten seconds, or since it began.
struct stream_rates {
  double generated = 0;   ///< tokens
  double trained = 0;     ///< tokens
  double useful = 0;      ///< tokens
  double reprefilled = 0; ///< tokens
  double discarded = 0;   ///< tokens
  double rollouts = 0;    ///< finished
  double steps = 0;

  bool operator==(const stream_rates&) const = default;
};

/// The course of a run for charts: samples at even intervals, from its beginning on, in bounded
/// memory: when it is full, every second sample goes and the interval doubles. Not thread-safe.
class run_series {
public:
  explicit run_series(double began, std::size_t capacity = 600) : began_(began), capacity_(capacity) {}

  /// To be called about once a second; `now` in seconds, monotonic.
  void sample(std::span<const actor_snapshot> actors, double now);
  [[nodiscard]] const stream_rates& rates() const { return rates_; }
  /// {"t": […], "reward": […], …}: columns of equal length; t in seconds since the beginning; null
  /// where nothing is known yet.
  [[nodiscard]] nlohmann::ordered_json to_json() const;
  [[nodiscard]] std::size_t size() const { return rows_.size(); }

  static constexpr std::size_t columns = 18;

private:
  static constexpr std::size_t rate_count = 7;
  using totals = std::array<double, rate_count>;
  using row = std::array<double, columns>;

  double began_;
  std::size_t capacity_;
  double interval_ = 1;
  double next_ = 0;
  std::deque<std::pair<double, totals>> recent_;
  stream_rates rates_;
  std::vector<row> rows_;
};

} // namespace millrace
