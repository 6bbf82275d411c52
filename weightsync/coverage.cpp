#include "weightsync/coverage.hpp"

#include <algorithm>

namespace millrace::weightsync {

auto coverage::take(std::int64_t begin, std::int64_t end) -> std::vector<interval> {
  std::vector<interval> fresh;
  if (begin >= end)
    return fresh;
  auto it = taken_.upper_bound(begin);
  if (it != taken_.begin() && std::prev(it)->second >= begin)
    --it;
  auto low = begin;
  auto high = end;
  auto at = begin;
  while (it != taken_.end() && it->first <= end) {
    if (at < it->first)
      fresh.emplace_back(at, it->first);
    at = std::max(at, it->second);
    low = std::min(low, it->first);
    high = std::max(high, it->second);
    it = taken_.erase(it);
  }
  if (at < end)
    fresh.emplace_back(at, end);
  taken_.emplace(low, high);
  return fresh;
}

std::int64_t coverage::first_gap(std::int64_t end) const {
  auto it = taken_.find(0);
  return it == taken_.end() ? 0 : std::min(it->second, end);
}

} // namespace millrace::weightsync
