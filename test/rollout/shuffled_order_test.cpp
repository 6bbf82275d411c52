#include "rollout/shuffled_order.hpp"

#include "runtime/error.hpp"

#include <catch2/catch.hpp>

#include <vector>

using namespace millrace;

TEST_CASE("shuffled order: a permutation for every size") {
  for (std::int64_t n = 1; n <= 200; ++n)
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      shuffled_order order(n, seed, static_cast<std::int64_t>(seed) * 7);
      std::vector<bool> seen(static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i) {
        const auto at = order(i);
        REQUIRE(at >= 0);
        REQUIRE(at < n);
        REQUIRE_FALSE(seen[static_cast<std::size_t>(at)]);
        seen[static_cast<std::size_t>(at)] = true;
      }
    }
}

TEST_CASE("shuffled order: other seeds and streams give other orders") {
  auto differing = [](const shuffled_order& a, const shuffled_order& b) {
    int n = 0;
    for (std::int64_t i = 0; i < a.size(); ++i)
      n += a(i) != b(i);
    return n;
  };
  const shuffled_order a(1000, 1, 0);
  REQUIRE(differing(a, shuffled_order(1000, 1, 0)) == 0);
  REQUIRE(differing(a, shuffled_order(1000, 2, 0)) > 950);
  REQUIRE(differing(a, shuffled_order(1000, 1, 1)) > 950);
}

TEST_CASE("shuffled order: every item comes first about equally often") {
  constexpr int items = 10, orders = 20'000;
  std::vector<int> first(items);
  for (int stream = 0; stream < orders; ++stream)
    ++first[static_cast<std::size_t>(shuffled_order(items, 3, stream)(0))];
  for (auto n : first) {
    REQUIRE(n > orders / items * 9 / 10);
    REQUIRE(n < orders / items * 11 / 10);
  }
}

TEST_CASE("shuffled order: sizes and indices that can't be are refused") {
  REQUIRE_THROWS_AS(shuffled_order(0, 0, 0), invariant_error);
  REQUIRE_THROWS_AS(shuffled_order(3, 0, 0)(3), invariant_error);
  REQUIRE_THROWS_AS(shuffled_order(3, 0, 0)(-1), invariant_error);
  REQUIRE(shuffled_order(std::int64_t{1} << 60, 0, 0)(123) >= 0);
}
