#include "trainer/learning_rate.hpp"

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::trainer;

TEST_CASE("learning rate: warm-up, decay and floor") {
  for (auto decay : {lr_schedule::constant, lr_schedule::linear, lr_schedule::cosine}) {
    learning_rate_schedule s{0.1, 4, 24, decay, 0.2};
    double last = 0;
    for (int step = 0; step < 4; ++step) {
      REQUIRE(s.at(step) > last);
      last = s.at(step);
    }
    REQUIRE(s.at(4) == Approx(0.1));
    auto end = decay == lr_schedule::constant ? 0.1 : 0.02;
    REQUIRE(s.at(24) == Approx(end));
    REQUIRE(s.at(1000) == Approx(end));
    REQUIRE(s.at(14) == Approx(decay == lr_schedule::constant ? 0.1 : 0.06));
    for (int step = 5; step < 30; ++step)
      REQUIRE(s.at(step) <= s.at(step - 1));
  }
}

TEST_CASE("learning rate without warm-up or without an end") {
  REQUIRE(learning_rate_schedule{0.1, 0, 0, lr_schedule::linear, 0}.at(0) == 0.1);
  REQUIRE(learning_rate_schedule{0.1, 10, 5, lr_schedule::cosine, 0}.at(12) == 0.1);
  REQUIRE(learning_rate_schedule{0.1, 0, 10, lr_schedule::linear, 0}.at(0) == 0.1);
}
