#pragma once

#include <optional>
#include <string>
#include <vector>

namespace millrace::bench {

/// One figure of a benchmark, perhaps against another one of the same run.
struct measurement {
  std::string name;
  double value = 0;
  std::string unit;
  std::string against;          ///< what it is compared with; empty: nothing
  std::optional<double> ratio;  ///< value over that
  std::optional<double> bar;    ///< that the ratio (or the value, without one) must reach
  bool bar_is_upper = false;    ///< must stay below it instead
  std::string missing;          ///< why it could not be measured; empty: it was

  /// None where there is no bar, or nothing was measured.
  [[nodiscard]] std::optional<bool> holds() const {
    if (!bar || !missing.empty())
      return std::nullopt;
    auto x = ratio.value_or(value);
    return bar_is_upper ? x <= *bar : x >= *bar;
  }
};

using measurements = std::vector<measurement>;

double median(std::vector<double> values);

} // namespace millrace::bench
