#include "rollout/shuffled_order.hpp"

#include "runtime/error.hpp"
#include "runtime/random.hpp"

#include <string>
#include <utility>

namespace millrace {

shuffled_order::shuffled_order(std::int64_t n, std::uint64_t seed, std::int64_t stream)
  : n_(n), seed_(seed), stream_(static_cast<std::uint64_t>(stream)) {
  ensure(n >= 1 && n <= std::int64_t{1} << 60, [&] { return "an order of " + std::to_string(n); });
  while ((std::uint64_t{1} << (2 * half_bits_)) < static_cast<std::uint64_t>(n))
    ++half_bits_;
}

std::uint64_t shuffled_order::scramble(std::uint64_t x) const {
  const auto mask = (std::uint64_t{1} << half_bits_) - 1;
  auto left = x >> half_bits_;
  auto right = x & mask;
  for (std::uint32_t round = 0; round < 6; ++round) {
    const auto noise = philox::draw({static_cast<std::uint32_t>(right), round,
                                     static_cast<std::uint32_t>(stream_),
                                     static_cast<std::uint32_t>(stream_ >> 32)}, seed_)[0];
    left ^= noise & mask;
    std::swap(left, right);
  }
  return left << half_bits_ | right;
}

std::int64_t shuffled_order::operator()(std::int64_t index) const {
  ensure(index >= 0 && index < n_, [&] {
    return "index " + std::to_string(index) + " of " + std::to_string(n_);
  });
  // Every cycle of a permutation that begins below n comes back below n.
  auto x = static_cast<std::uint64_t>(index);
  do {
    x = scramble(x);
  } while (x >= static_cast<std::uint64_t>(n_));
  return static_cast<std::int64_t>(x);
}

} // namespace millrace
