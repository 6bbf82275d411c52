#include "weightsync/delta.hpp"

#include <catch2/catch.hpp>

#include <random>

using namespace millrace::weightsync;

TEST_CASE("a delta applied to the old bytes gives the new ones") {
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    std::mt19937_64 random(seed);
    std::size_t size = std::size_t{1} << random() % 3;
    std::size_t n = random() % 3000;
    std::vector<std::byte> before(n * size);
    for (auto& b : before)
      b = static_cast<std::byte>(random());
    auto after = before;
    auto density = 1 + random() % 1000;
    for (std::size_t i = 0; i < n; ++i)
      if (random() % density == 0)
        after[i * size + random() % size] ^= static_cast<std::byte>(1 + random() % 255);
    std::vector<std::byte> out(5, std::byte{7});
    auto limit = random() % (n * size + 10);
    INFO("seed " << seed);
    if (!encode_delta(before, after, size, limit, out)) {
      REQUIRE(out.size() == 5);
      continue;
    }
    REQUIRE(out.size() - 5 < limit);
    auto delta = std::span<const std::byte>(out).subspan(5);
    auto bytes = before;
    REQUIRE(apply_delta(delta, size, bytes));
    REQUIRE(bytes == after);
  }
}

TEST_CASE("an unchanged shard takes a few bytes, a new one is refused") {
  std::vector<std::byte> a(1U << 20U, std::byte{1});
  std::vector<std::byte> b(1U << 20U, std::byte{2});
  std::vector<std::byte> out;
  REQUIRE(encode_delta(a, a, 2, a.size(), out));
  REQUIRE(out.size() == 4);
  REQUIRE_FALSE(encode_delta(a, b, 2, a.size(), out));
  for (std::size_t room = 0; room <= 4; ++room) // as a publisher with little of it left asks
    REQUIRE_FALSE(encode_delta(a, a, 2, room, out));
  REQUIRE(out.size() == 4);
  REQUIRE(encode_delta(a, a, 2, 5, out));
}

TEST_CASE("damaged deltas never write outside") {
  std::vector<std::byte> before(400), after(400);
  std::mt19937_64 random(1);
  for (auto& b : after)
    b = static_cast<std::byte>(random() % 2);
  std::vector<std::byte> delta;
  REQUIRE(encode_delta(before, after, 2, 10'000, delta));
  for (int i = 0; i < 5000; ++i) {
    auto bad = delta;
    bad[random() % bad.size()] = static_cast<std::byte>(random());
    bad.resize(bad.size() - random() % 3);
    auto bytes = before;
    apply_delta(bad, 2, bytes); // either answer; the address sanitizer watches
  }
  REQUIRE_FALSE(apply_delta({}, 2, before));
}
