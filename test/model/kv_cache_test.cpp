#include "runtime/error.hpp"
#include "runtime/model/kv_cache.hpp"
#include "runtime/random.hpp"

#include <catch2/catch.hpp>

#include <map>
#include <set>

using namespace millrace;
using namespace millrace::model;

namespace {

std::vector<std::int32_t> filled(std::int32_t with) {
  return std::vector<std::int32_t>(block_tokens, with);
}

} // namespace

TEST_CASE("blocks are handed out once and come back") {
  block_pool pool(3);
  const std::set<std::int32_t> all{pool.allocate(), pool.allocate(), pool.allocate()};
  REQUIRE(all == std::set<std::int32_t>{0, 1, 2});
  REQUIRE(pool.allocate() == -1);
  pool.release(1);
  REQUIRE(pool.available() == 1);
  REQUIRE(pool.allocate() == 1);
  pool.retain(1);
  pool.release(1);
  REQUIRE(pool.available() == 0);
  pool.release(1);
  REQUIRE(pool.available() == 1);
  REQUIRE_THROWS_AS(pool.release(1), invariant_error);
}

TEST_CASE("a prefix is found by its whole content and its version, and by nothing else") {
  block_pool pool(4);
  const auto a = pool.allocate(), b = pool.allocate();
  const auto first = pool.publish(block_pool::empty_prefix, filled(1), {0}, a);
  pool.publish(first, filled(2), {0}, b);
  REQUIRE(pool.find(block_pool::empty_prefix, filled(1), {0})->block == a);
  REQUIRE(pool.find(first, filled(2), {0})->block == b);
  REQUIRE_FALSE(pool.find(block_pool::empty_prefix, filled(1), {1}));
  REQUIRE_FALSE(pool.find(block_pool::empty_prefix, filled(2), {0}));
  REQUIRE_FALSE(pool.find(first, std::vector<std::int32_t>(3, 2), {0}));
  // Known until the block is needed for something else, even when nobody holds it.
  pool.release(a);
  REQUIRE(pool.find(block_pool::empty_prefix, filled(1), {0}));
  pool.allocate();
  pool.allocate();
  REQUIRE(pool.allocate() == a);
  REQUIRE_FALSE(pool.find(block_pool::empty_prefix, filled(1), {0}));
  pool.forget_all();
  REQUIRE_FALSE(pool.find(first, filled(2), {0}));
}

TEST_CASE("random use never loses a block nor finds a wrong one") {
  const std::uint64_t seed = 7;
  INFO("seed " << seed);
  random_stream draws(seed);
  block_pool pool(13);
  std::map<std::int32_t, int> held;              // block → references
  std::map<std::int32_t, std::int32_t> contents; // block → what was last published in it
  for (int step = 0; step < 20000; ++step) {
    const auto what = draws.below(4);
    if (what == 0) {
      const auto b = pool.allocate();
      REQUIRE((b >= 0) == (held.size() < 13));
      if (b >= 0) {
        REQUIRE(held.count(b) == 0);
        held[b] = 1;
        contents.erase(b);
        const auto name = static_cast<std::int32_t>(draws.below(20));
        pool.publish(block_pool::empty_prefix, filled(name), {0}, b);
        contents[b] = name;
      }
    } else if (what == 1 && !held.empty()) {
      auto it = std::next(held.begin(), static_cast<std::ptrdiff_t>(draws.below(held.size())));
      pool.release(it->first);
      if (--it->second == 0)
        held.erase(it);
    } else {
      const auto name = static_cast<std::int32_t>(draws.below(20));
      const auto found = pool.find(block_pool::empty_prefix, filled(name), {0});
      if (found) {
        REQUIRE(contents.at(found->block) == name);
        pool.retain(found->block);
        ++held[found->block];
      }
    }
    REQUIRE(pool.available() == 13 - static_cast<std::int32_t>(held.size()));
  }
}
