#include "rollout/admission.hpp"

#include <catch2/catch.hpp>

#include <random>

using namespace millrace;

TEST_CASE("admission: fixed points of the design") {
  auto n = [](std::int64_t max, std::int64_t b, std::int32_t eta, std::int64_t running,
              std::int64_t held) {
    return admissible({max, b, eta}, {running, held});
  };
  CHECK(n(100, 4, 2, 0, 0) == 12);
  CHECK(n(10, 4, 2, 3, 0) == 7);
  CHECK(n(20, 4, 2, 0, 5) == 7);
  CHECK(n(20, 8, 3, 0, 15) == 17);
  CHECK(n(100, 8, 0, 0, 8) == 0);
}

TEST_CASE("admission: never negative, never above either bound, and a rollout may always begin at "
          "the published version") {
  std::mt19937 random(7);
  for (int i = 0; i < 10'000; ++i) {
    admission_limits limits{1 + static_cast<std::int64_t>(random() % 64),
                            1 + static_cast<std::int64_t>(random() % 32),
                            static_cast<std::int32_t>(random() % 9)};
    stream_load load{static_cast<std::int64_t>(random() % 80),
                     static_cast<std::int64_t>(random() % 200)};
    version v{static_cast<std::int32_t>(random() % 100)};
    auto n = admissible(limits, load);
    REQUIRE(n >= 0);
    if (n > 0) {
      REQUIRE(load.outstanding() + n <= (limits.eta + 1) * limits.batch_size);
      REQUIRE(load.running + n <= limits.max_concurrent);
      REQUIRE(oldest_start(limits, load, v) <= v);
      // Trained oldest first, it is within the bound.
      auto trained_from = v.value + load.outstanding() / limits.batch_size;
      REQUIRE(trained_from - oldest_start(limits, load, v).value <= limits.eta);
    }
  }
}
