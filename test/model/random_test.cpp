#include "runtime/random.hpp"

#include <catch2/catch.hpp>

#include <cmath>
#include <set>

using namespace millrace;

TEST_CASE("philox gives the words of the published test vectors") {
  REQUIRE(philox::draw({0, 0, 0, 0}, 0)
          == philox::block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  REQUIRE(philox::draw({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, ~std::uint64_t{0})
          == philox::block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  REQUIRE(philox::draw({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822)
          == philox::block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("sampling draws depend on every part of their key and on nothing else") {
  std::set<double> seen;
  for (std::uint64_t seed : {0, 1})
    for (std::int64_t prompt : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 40})
      for (std::int32_t sample : {0, 1, 7})
        for (std::int32_t position : {0, 1, 1000}) {
          const auto u = sampling_draw(seed, prompt, sample, position);
          REQUIRE(u >= 0);
          REQUIRE(u < 1);
          REQUIRE(u == sampling_draw(seed, prompt, sample, position));
          seen.insert(u);
        }
  REQUIRE(seen.size() == 54);
}

TEST_CASE("a stream's normal numbers have the moments of a normal distribution") {
  random_stream draws(3, stream_of("moments"));
  constexpr int n = 200000;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < n; ++i) {
    const double x = draws.normal();
    REQUIRE(std::abs(x) < 5);
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  REQUIRE(std::abs(sum / n) < 0.01);
  REQUIRE(std::abs(squares / n - 1) < 0.02);
  REQUIRE(std::abs(fourth / n - 2.85) < 0.1); // 3 less 1.2 / 8: eight uniforms
}

TEST_CASE("numbers below a bound are below it and even") {
  random_stream draws(5);
  int counts[7] = {};
  for (int i = 0; i < 70000; ++i)
    ++counts[draws.below(7)];
  for (const int c : counts)
    REQUIRE(std::abs(c - 10000) < 500);
  REQUIRE(draws.below(0) == 0);
  REQUIRE(draws.below(1) == 0);
}
