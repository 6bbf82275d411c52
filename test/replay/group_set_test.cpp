#include "replay/group_set.hpp"

#include "runtime/error.hpp"

#include <catch2/catch.hpp>

#include <random>
#include <set>

using namespace millrace;

TEST_CASE("group set: agrees with std::set, and forgets nothing that is complete") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    group_set s;
    std::set<std::int64_t> expected;
    for (int i = 0; i < 1000; ++i) {
      const auto id = static_cast<std::int64_t>(random() % 300);
      REQUIRE(s.insert(id) == expected.insert(id).second);
    }
    for (std::int64_t id = -1; id < 400; ++id)
      REQUIRE(s.contains(id) == expected.contains(id));
    REQUIRE(group_set::restore(s.full_words(), s.words()) == s);
  }
}

TEST_CASE("group set: takes no room for what is complete, in whatever order it came") {
  group_set s;
  for (std::int64_t id = 6400; id-- > 0;)
    s.insert(id);
  REQUIRE(s.full_words() == 100);
  REQUIRE(s.words().empty());
  REQUIRE_THROWS_AS(s.insert(-1), invariant_error);
  REQUIRE(s.insert(std::int64_t{1} << 62));
}
