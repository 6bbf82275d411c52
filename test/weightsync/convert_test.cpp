#include "weightsync/convert.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

using namespace millrace::weightsync;

namespace {

std::uint16_t bf16(float x) {
  std::uint16_t y = 0;
  f32_to_bf16(&x, &y, 1);
  return y;
}

float back(std::uint16_t x) {
  float y = 0;
  bf16_to_f32(&x, &y, 1);
  return y;
}

} // namespace

TEST_CASE("bf16 rounds to the nearest, ties to even") {
  REQUIRE(bf16(1.0F) == 0x3F80);
  REQUIRE(bf16(std::bit_cast<float>(0x3F808000U)) == 0x3F80); // a tie: down to even
  REQUIRE(bf16(std::bit_cast<float>(0x3F818000U)) == 0x3F82); // a tie: up to even
  REQUIRE(bf16(std::bit_cast<float>(0x3F808001U)) == 0x3F81);
  REQUIRE(bf16(-0.0F) == 0x8000);
  REQUIRE(bf16(std::numeric_limits<float>::infinity()) == 0x7F80);
  REQUIRE(bf16(std::numeric_limits<float>::max()) == 0x7F80);
  REQUIRE(std::isnan(back(bf16(std::numeric_limits<float>::quiet_NaN()))));
  REQUIRE(std::isnan(back(bf16(std::bit_cast<float>(0x7F800001U))))); // payload in low bits only
  REQUIRE(std::isnan(back(bf16(std::bit_cast<float>(0xFFFFFFFFU)))));
}

TEST_CASE("bf16 to f32 and back is the identity") {
  for (std::uint32_t x = 0; x < 0x10000; ++x) {
    auto f = back(static_cast<std::uint16_t>(x));
    if (!std::isnan(f))
      REQUIRE(bf16(f) == x);
  }
}

TEST_CASE("vectorised loops agree with one element at a time") {
  std::mt19937_64 random(3);
  for (std::size_t n : {0, 1, 15, 16, 17, 63, 1001}) {
    std::vector<float> x(n);
    for (auto& v : x)
      v = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    std::vector<std::uint16_t> y(n);
    f32_to_bf16(x.data(), y.data(), n);
    for (std::size_t i = 0; i < n; ++i)
      REQUIRE(y[i] == bf16(x[i]));
  }
}

TEST_CASE("i8 is symmetric, rounds to the nearest and loses half a step at most") {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  for (std::size_t n : {1, 7, 64, 1003}) {
    std::vector<float> x(n);
    for (auto& v : x)
      v = normal(random) * 0.02F;
    auto scale = i8_scale(largest_magnitude(x.data(), n));
    std::vector<std::int8_t> q(n);
    f32_to_i8(x.data(), q.data(), n, scale);
    std::vector<float> y(n);
    i8_to_f32(q.data(), y.data(), n, scale);
    for (std::size_t i = 0; i < n; ++i) {
      REQUIRE(q[i] == static_cast<std::int8_t>(std::nearbyint(x[i] * (1.0F / scale))));
      REQUIRE(std::abs(x[i] - y[i]) <= 0.5001F * scale);
    }
  }
  float zero = 0;
  REQUIRE(i8_scale(largest_magnitude(&zero, 1)) == 1.0F);
  float bad = std::numeric_limits<float>::quiet_NaN();
  REQUIRE(std::isinf(largest_magnitude(&bad, 1)));
}

namespace {

/// E4M3 by its definition: sign, four bits of exponent (bias 7), three of mantissa.
float from_f8(std::uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const auto x = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                               : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return code & 0x80 ? -x : x;
}

std::uint8_t f8(float x) {
  std::uint8_t y = 0;
  f32_to_f8(&x, &y, 1, 1);
  return y;
}

} // namespace

TEST_CASE("E4M3 is the nearest of its numbers, ties to even") {
  for (int code = 0; code < 256; ++code)
    if ((code & 0x7F) != 0x7F)
      REQUIRE(f8(from_f8(static_cast<std::uint8_t>(code))) == code);
  for (int code = 0; code < 0x7E; ++code) { // between neighbours
    const auto low = from_f8(static_cast<std::uint8_t>(code));
    const auto high = from_f8(static_cast<std::uint8_t>(code + 1));
    const auto middle = (low + high) / 2;
    REQUIRE(f8(std::nextafter(middle, 0.0F)) == code);
    REQUIRE(f8(std::nextafter(middle, 1000.0F)) == code + 1);
    REQUIRE(f8(middle) == code + code % 2);
    REQUIRE(f8(-middle) == ((code + code % 2) | 0x80));
  }
  REQUIRE(f8(1e9F) == 0x7E);
  REQUIRE(f8(-std::numeric_limits<float>::infinity()) == 0xFE);
  REQUIRE((f8(std::numeric_limits<float>::quiet_NaN()) & 0x7F) == 0x7F);
  REQUIRE(f8_scale(0) == 1);
  REQUIRE(f8(7.0F / f8_scale(7.0F)) == 0x7E);
}

TEST_CASE("rows of the smallest numbers keep their zeros in eight bits") {
  constexpr auto denormal = std::numeric_limits<float>::denorm_min();
  for (const auto largest : {denormal, 1e-40F, 1e-38F, 4e-37F, 1e-36F, 9e-31F, 2e-30F, 1e-20F}) {
    INFO(largest);
    const std::vector<float> x{0.0F, largest, -0.0F, -largest / 2, 0.0F};
    const auto found = largest_magnitude(x.data(), x.size());
    REQUIRE(found == largest);
    REQUIRE(std::isfinite(1 / f8_scale(found)));
    REQUIRE(std::isfinite(1 / i8_scale(found)));
    std::vector<std::uint8_t> narrow(x.size());
    f32_to_f8(x.data(), narrow.data(), x.size(), f8_scale(found));
    std::vector<std::int8_t> whole(x.size());
    f32_to_i8(x.data(), whole.data(), x.size(), i8_scale(found));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto f = from_f8(narrow[i]) * f8_scale(found);
      const auto w = static_cast<float>(whole[i]) * i8_scale(found);
      REQUIRE(std::abs(f - x[i]) <= std::max(std::abs(x[i]) / 16, 1e-30F));
      REQUIRE(std::abs(w - x[i]) <= std::max(largest / 253, 1e-30F));
      if (x[i] == 0) {
        REQUIRE((narrow[i] & 0x7F) == 0);
        REQUIRE(whole[i] == 0);
      }
    }
  }
}
