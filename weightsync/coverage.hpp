#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace millrace::weightsync {

/// Which of the numbers 0, 1, 2, … have been taken, as intervals.
class coverage {
public:
  using interval = std::pair<std::int64_t, std::int64_t>; ///< [first, second)

  /// Takes [begin, end); returns what of it was not taken before, in order.
  std::vector<interval> take(std::int64_t begin, std::int64_t end);

  /// The first number in [0, end) that was not taken, or `end`.
  [[nodiscard]] std::int64_t first_gap(std::int64_t end) const;

private:
  std::map<std::int64_t, std::int64_t> taken_; // begin → end; disjoint, and not even touching
};

} // namespace millrace::weightsync
