#include "runtime/natural_order.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <vector>

using namespace millrace;

TEST_CASE("natural order: numbers count by their value, all else by its letters") {
  const std::vector<std::string> sorted{
    "",         "7",        "10",        "gen",       "gen-1", "gen-2", "gen-10", "gen-10/reward-2",
    "gen-10/reward-11", "gen-99999999999999999999999", "gen-100000000000000000000000", "judge"};
  for (std::size_t i = 0; i < sorted.size(); ++i)
    for (std::size_t k = 0; k < sorted.size(); ++k) {
      INFO(sorted[i] << " and " << sorted[k]);
      CHECK((natural_order(sorted[i], sorted[k]) == (i <=> k)));
    }
}

TEST_CASE("natural order: leading zeros don't make two names one") {
  CHECK((natural_order("gen-01", "gen-1") < 0));
  CHECK((natural_order("gen-1", "gen-01") > 0));
  CHECK((natural_order("gen-01", "gen-2") < 0));
  CHECK((natural_order("gen-0", "gen-00") != 0));
}
