#include "weightsync/checksum.hpp"
#include "weightsync/xxh3_secret.hpp"

#include <catch2/catch.hpp>

#include <random>
#include <vector>

using namespace millrace::weightsync;

TEST_CASE("the checksum is XXH3's") {
  // Of the empty input with seed 0: a published test value.
  REQUIRE(checksum({}) == 0x2D06800538D394C2ULL);
}

TEST_CASE("a checksum in parts is the checksum of the whole") {
  std::mt19937_64 random(7);
  for (std::size_t n : {0, 1, 3, 16, 239, 240, 241, 1024, 100'003}) {
    std::vector<std::byte> bytes(n);
    for (auto& b : bytes)
      b = static_cast<std::byte>(random());
    running_checksum sum;
    std::span<const std::byte> left(bytes);
    while (!left.empty()) {
      auto k = std::min<std::size_t>(left.size(), 1 + random() % 5000);
      sum.update(left.first(k));
      left = left.subspan(k);
    }
    REQUIRE(sum.value() == checksum(bytes));
    if (n > 0) {
      auto before = checksum(bytes);
      bytes[random() % n] ^= static_cast<std::byte>(1U << random() % 8);
      REQUIRE(checksum(bytes) != before);
    }
  }
}

TEST_CASE("copied and summed in one pass, from and to any address") {
  std::mt19937_64 random(8);
  std::vector<std::byte> from(200'000);
  for (auto& b : from)
    b = static_cast<std::byte>(random());
  for (std::size_t n : {0, 1, 63, 64, 65, 240, 16'384, 16'385, 100'001}) {
    std::vector<std::byte> to(200'000, std::byte{9});
    auto at = random() % 100;
    auto begin = random() % 100;
    auto part = std::span<const std::byte>(from).subspan(begin, n);
    REQUIRE(copy_with_checksum(part, to.data() + at) == checksum(part));
    REQUIRE(std::equal(part.begin(), part.end(), to.begin() + static_cast<std::ptrdiff_t>(at)));
    for (std::size_t i = 0; i < to.size(); ++i)
      if (i < at || i >= at + n)
        REQUIRE(to[i] == std::byte{9});
  }
}

TEST_CASE("the steps that a GPU takes give XXH3's value") {
  std::mt19937_64 random(9);
  for (std::size_t n : {241, 255, 256, 257, 1023, 1024, 1025, 1088, 1089, 4096, 65'537, 300'000}) {
    std::vector<std::byte> bytes(n);
    for (auto& b : bytes)
      b = static_cast<std::byte>(random());
    REQUIRE(xxh3::hash_by_steps(bytes) == checksum(bytes));
  }
}
