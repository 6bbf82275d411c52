#include "fixtures.hpp"

#include "weightsync/coverage.hpp"
#include "weightsync/layout.hpp"
#include "weightsync/packing.hpp"
#include "weightsync/slice.hpp"

#include <catch2/catch.hpp>

#include <random>
#include <set>
#include <vector>

using namespace millrace::weightsync;

namespace {

slice random_slice(const tensor_shape& shape, std::mt19937_64& random) {
  auto axis = static_cast<std::int32_t>(random() % (shape.size() + 1)) - 1;
  auto s = whole(shape);
  if (axis >= 0) {
    auto n = shape[static_cast<std::size_t>(axis)];
    auto a = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n + 1));
    auto b = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n + 1));
    s = along(shape, axis, std::min(a, b), std::max(a, b));
  }
  if (random() % 2 == 0 && s.count > 0) {
    auto first = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(s.count));
    auto count = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(s.count - first + 1));
    s = part_of(s, first, count);
  }
  return s;
}

tensor_shape random_shape(std::mt19937_64& random) {
  tensor_shape shape(1 + random() % 3);
  for (auto& d : shape)
    d = 1 + static_cast<std::int64_t>(random() % 7);
  return shape;
}

} // namespace

TEST_CASE("intersect copies every common element once, to where it belongs") {
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    std::mt19937_64 random(seed);
    auto shape = random_shape(random);
    auto a = random_slice(shape, random);
    auto b = random_slice(shape, random);
    REQUIRE(valid_slice(shape, a));
    auto from = elements(shape, a);
    auto to = elements(shape, b);
    std::vector<std::int64_t> got(to.size(), -1);
    for (const auto& c : intersect(shape, a, b))
      for (std::int64_t i = 0; i < c.count; ++i)
        for (std::int64_t k = 0; k < c.length; ++k) {
          auto& g = got.at(static_cast<std::size_t>(c.to + i * c.to_stride + k));
          REQUIRE(g == -1);
          g = from.at(static_cast<std::size_t>(c.from + i * c.from_stride + k));
        }
    std::set<std::int64_t> held(from.begin(), from.end());
    INFO("seed " << seed);
    for (std::size_t i = 0; i < to.size(); ++i)
      REQUIRE(got[i] == (held.contains(to[i]) ? to[i] : -1));
  }
}

TEST_CASE("regular intersections are one strided copy") {
  tensor_shape shape = {4096, 512};
  auto copies = intersect(shape, along(shape, 1, 0, 256), along(shape, 1, 128, 512));
  REQUIRE(copies == std::vector<strided_copy>{{128, 0, 128, 4096, 256, 384}});
  REQUIRE(intersect(shape, whole(shape), whole(shape)).size() == 1);
  REQUIRE(intersect(shape, along(shape, 0, 0, 5), along(shape, 0, 5, 9)).empty());
}

TEST_CASE("slices that are not in the tensor are found out") {
  tensor_shape shape = {4, 6};
  REQUIRE_FALSE(valid_slice(shape, {2, 0, 1, 0, 1}));
  REQUIRE_FALSE(valid_slice(shape, {1, 0, 7, 0, 1}));
  REQUIRE_FALSE(valid_slice(shape, {1, 3, 2, 0, 0}));
  REQUIRE_FALSE(valid_slice(shape, {1, 0, 2, 0, 9}));
  REQUIRE_FALSE(valid_slice(shape, {-1, 0, 0, 20, 5}));
  REQUIRE_FALSE(valid_slice(shape, {-1, 0, 0, INT64_MAX, INT64_MAX}));
  REQUIRE_FALSE(valid_slice({-1}, {-1, 0, 0, 0, 0}));
  REQUIRE_FALSE(valid_slice({INT64_MAX, 4}, {-1, 0, 0, 0, 1}));
  REQUIRE(valid_slice({}, {-1, 0, 0, 0, 1}));
  REQUIRE(valid_slice({0, INT64_MAX / 2}, {-1, 0, 0, 0, 0}) == (elements_of({0, INT64_MAX / 2}) >= 0));
}

TEST_CASE("split covers the length without a gap") {
  for (std::int64_t units : {0, 1, 2, 5, 8})
    for (std::int32_t parts : {1, 2, 3, 7}) {
      std::int64_t at = 0;
      for (std::int32_t i = 0; i < parts; ++i) {
        auto r = split(units * 4, 4, i, parts);
        REQUIRE(r.begin == at);
        REQUIRE(r.end % 4 == 0);
        at = r.end;
      }
      REQUIRE(at == units * 4);
    }
}

TEST_CASE("coverage gives out every number once") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    std::mt19937_64 random(seed);
    coverage c;
    std::set<std::int64_t> taken;
    for (int i = 0; i < 20; ++i) {
      std::int64_t a = static_cast<std::int64_t>(random() % 40);
      std::int64_t b = a + static_cast<std::int64_t>(random() % 10);
      std::set<std::int64_t> fresh;
      for (auto [x, y] : c.take(a, b))
        for (auto k = x; k < y; ++k)
          REQUIRE(fresh.insert(k).second);
      for (auto k = a; k < b; ++k)
        REQUIRE(fresh.contains(k) == taken.insert(k).second);
      std::int64_t gap = 0;
      while (taken.contains(gap) && gap < 30)
        ++gap;
      REQUIRE(c.first_gap(30) == gap);
    }
  }
}

TEST_CASE("cut pieces are what the owner had, and end where readers begin") {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    std::mt19937_64 random(seed);
    auto shape = random_shape(random);
    auto own = random_slice(shape, random);
    std::vector<slice> readers;
    auto parts = 1 + static_cast<std::int32_t>(random() % 3);
    auto axis = static_cast<std::int32_t>(random() % shape.size());
    for (std::int32_t i = 0; i < parts; ++i) {
      auto r = split(shape[static_cast<std::size_t>(axis)], 1, i, parts);
      readers.push_back(along(shape, axis, r.begin, r.end));
    }
    std::multiset<std::int64_t> got;
    for (const auto& p : cut(shape, own, readers)) {
      REQUIRE(valid_slice(shape, p));
      for (auto g : elements(shape, p))
        got.insert(g);
    }
    auto expected = elements(shape, own);
    INFO("seed " << seed);
    REQUIRE(got == std::multiset<std::int64_t>(expected.begin(), expected.end()));
  }
  tensor_shape shape = {6, 8};
  std::vector<slice> readers = {along(shape, 1, 0, 4), along(shape, 1, 4, 8)};
  REQUIRE(cut(shape, whole(shape), readers) == readers);
}
