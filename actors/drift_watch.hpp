#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace millrace {

/// Notices that trainer and generators have drifted apart: that for several steps in a row the
/// effective sample size was below one half, or that the loss's masks or clips took out more than
/// half of the tokens. Pure: a step's figures in, a warning out.
class drift_watch {
public:
  /// Steps in a row from which on it is no accident.
  static constexpr std::int32_t steps_in_a_row = 5;

  /// `values` of a step, by their names in metrics.jsonl; those that are missing are taken as harmless.
  /// A warning at the 5th step in a row, the 10th, the 20th, ….
  std::optional<std::string> look(const std::map<std::string, double>& values);

  /// Whether any of the three has lasted so long.
  [[nodiscard]] bool apart() const;

private:
  std::array<std::int32_t, 3> lasted_{}; ///< steps in a row, of each sign
};

} // namespace millrace
