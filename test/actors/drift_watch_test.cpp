#include "actors/drift_watch.hpp"

#include <catch2/catch.hpp>

#include <vector>

using namespace millrace;
using Catch::Matchers::Contains;

TEST_CASE("drift: told at the 5th step in a row, the 10th and the 20th; one good step ends it") {
  drift_watch watch;
  std::vector<int> told;
  for (int step = 1; step <= 30; ++step)
    if (auto text = watch.look({{"ess", 0.31}})) {
      CHECK_THAT(*text, Contains("for " + std::to_string(step) + " steps") && Contains("(now 0.31)"));
      told.push_back(step);
    }
  CHECK(told == std::vector<int>{5, 10, 20});
  CHECK(watch.apart());
  CHECK_FALSE(watch.look({{"ess", 0.9}}));
  CHECK_FALSE(watch.apart());
  for (int step = 1; step < 5; ++step)
    CHECK_FALSE(watch.look({{"ess", 0.31}}));
  CHECK(watch.look({{"ess", 0.31}}));
}

TEST_CASE("drift: masks and clips count each by themselves, clips of both signs together") {
  drift_watch masked, clipped, in_turn;
  for (int step = 1; step < 5; ++step) {
    CHECK_FALSE(masked.look({{"mask_fraction", 0.6}}));
    CHECK_FALSE(clipped.look({{"clip_fraction_positive", 0.3}, {"clip_fraction_negative", 0.3}}));
  }
  CHECK_THAT(masked.look({{"mask_fraction", 0.6}}).value_or(""), Contains("masked tokens"));
  CHECK_THAT(
    clipped.look({{"clip_fraction_positive", 0.3}, {"clip_fraction_negative", 0.3}}).value_or(""),
    Contains("clipped tokens"));
  for (int step = 1; step < 20; ++step)
    CHECK_FALSE(in_turn.look({{step % 2 == 0 ? "mask_fraction" : "clip_fraction_positive", 0.6}}));
}

TEST_CASE("drift: figures that are missing, or at the limit, are none") {
  drift_watch watch;
  for (int step = 1; step < 20; ++step) {
    CHECK_FALSE(watch.look({}));
    CHECK_FALSE(watch.look({{"ess", 0.5}, {"mask_fraction", 0.5}}));
  }
}
