#include "runtime/error.hpp"
#include "weightsync/checksum.hpp"
#include "weightsync/manifest.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <cstring>
#include <random>

using namespace millrace;
using namespace millrace::weightsync;

namespace {

manifest sample() {
  manifest m;
  m.number = {3};
  m.owners = {{"ucx", std::string("\x00\xff peer", 7), "key", 0xFFFF'FFFF'0000'0001ULL, 4096},
              {"local", "", "", 0, 100, memory_kind::cuda}};
  tensor_shape shape = {4, 6};
  m.tensors.push_back({"a.weight", dtype::bf16, shape,
                       {{0, along(shape, 1, 0, 3), 64, 24, 0xFEDC'BA98'7654'3210ULL, {}, {}},
                        {1, along(shape, 1, 3, 6), 0, 24, 7, {}, {}}}});
  m.tensors.push_back({"q", dtype::i8, {2, 3}, {{0, whole({2, 3}), 0, 6, 1, {0.5F, 0.25F}, {}}}});
  m.tensors[0].shards[1].delta = {90, 10, 0x1234567890ABCDEFULL};
  m.delta_base = {2};
  m.tensors.push_back({"nothing", dtype::f32, {0}, {}});
  return m;
}

} // namespace

TEST_CASE("a manifest survives JSON and its binary form") {
  auto m = sample();
  validate(m);
  REQUIRE(manifest_from_json(nlohmann::json::parse(to_json(m).dump())) == m);
  REQUIRE(manifest_from_binary(to_binary(m)) == m);
  REQUIRE(manifest_from_binary(to_binary(manifest{})) == manifest{});
}

TEST_CASE("the topology ignores what changes from version to version") {
  auto m = sample();
  auto t = m.topology();
  m.number = {4};
  m.owners[0].key = "other";
  m.tensors[0].shards[0].checksum = 1;
  REQUIRE(m.topology() == t);
  m.tensors[0].shards[0].offset += 2;
  REQUIRE(m.topology() != t);
}

TEST_CASE("unsound manifests are refused, naming the tensor") {
  auto refused = [](auto&& spoil, const std::string& named) {
    auto m = sample();
    spoil(m);
    REQUIRE_THROWS_WITH(validate(m), Catch::Contains(named));
    REQUIRE_THROWS_AS(manifest_from_binary(to_binary(m)), user_error);
  };
  refused([](auto& m) { m.tensors[0].shards[1].owner = 2; }, "a.weight");
  refused([](auto& m) { m.tensors[0].shards[1].owner = -1; }, "a.weight");
  refused([](auto& m) { m.tensors[0].shards[0].offset = 4090; }, "reaches beyond");
  refused([](auto& m) { m.tensors[0].shards[0].offset = UINT64_MAX; }, "reaches beyond");
  refused([](auto& m) { m.tensors[0].shards[1].delta.length = 11; }, "changes reach");
  refused([](auto& m) { m.tensors[0].shards[0].length = 23; }, "expected 24");
  refused([](auto& m) { m.tensors[0].shards[0].part.end = 9; }, "not a slice");
  refused([](auto& m) { m.tensors[1].shards[0].scales.pop_back(); }, "scales");
  refused([](auto& m) { m.tensors[1].name = "a.weight"; }, "named twice");
  refused([](auto& m) { m.tensors[2].shape = {INT64_MAX, INT64_MAX}; }, "nothing");
  refused([](auto& m) { m.tensors[2].type = static_cast<dtype>(99); }, "unknown type");
  refused([](auto& m) { m.number = no_version; }, "version");
}

TEST_CASE("damaged binary manifests are refused, whatever the damage") {
  auto good = to_binary(sample());
  for (std::size_t n = 0; n < good.size(); ++n)
    REQUIRE_THROWS_AS(manifest_from_binary(std::span(good).first(n)), user_error);
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    std::mt19937_64 random(seed);
    auto bad = good;
    for (auto k = 1 + random() % 4; k > 0; --k)
      bad[random() % (bad.size() - 8)] = static_cast<std::byte>(random());
    // With the outer checksum made right again, the structure itself is what is tried.
    auto sum = checksum(std::span(bad).first(bad.size() - 8));
    std::memcpy(bad.data() + bad.size() - 8, &sum, 8);
    try {
      validate(manifest_from_binary(bad));
    } catch (const user_error&) {
    }
  }
}

TEST_CASE("damaged JSON manifests are refused") {
  auto text = to_json(sample()).dump();
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 random(seed);
    auto bad = text;
    bad[random() % bad.size()] = static_cast<char>(32 + random() % 95);
    auto j = nlohmann::json::parse(bad, nullptr, false);
    if (j.is_discarded())
      continue;
    try {
      validate(manifest_from_json(j));
    } catch (const user_error&) {
    }
  }
}

TEST_CASE("ranks' manifests are merged into one") {
  auto a = sample();
  auto b = sample();
  manifest both = merge(std::vector{a, b});
  REQUIRE(both.owners.size() == 4);
  REQUIRE(both.tensors.size() == 3);
  REQUIRE(both.tensors[0].shards.size() == 4);
  REQUIRE(both.tensors[0].shards[2].owner == 2);
  b.number = {4};
  REQUIRE_THROWS_AS(merge(std::vector{a, b}), user_error);
  b.number = {3};
  b.tensors[0].type = dtype::f16;
  REQUIRE_THROWS_WITH(merge(std::vector{a, b}), Catch::Contains("a.weight"));
}
