#include "trainer/version_ring.hpp"

#include "runtime/random.hpp"
#include "test/trainer/scratch_folder.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

using namespace millrace;
using namespace millrace::trainer;
using millrace::toy::scratch_folder;
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t numbers = 50;
constexpr std::int64_t bytes = numbers * 4;

at::Tensor weights(int v) { return at::full({numbers}, 0.1F + static_cast<float>(v)); }

bool right(version_ring& ring, int v) {
  auto into = at::zeros({numbers});
  return ring.load({v}, into) && into.equal(weights(v));
}

} // namespace

TEST_CASE("a ring keeps the last versions, bit for bit") {
  version_ring ring({.versions = 3, .memory_bytes = 1 << 20});
  auto into = at::zeros({numbers});
  REQUIRE(!ring.load({0}, into));
  for (int v = 0; v < 6; ++v)
    REQUIRE(ring.put({v}, weights(v)));
  REQUIRE((ring.versions() == std::vector<version>{{3}, {4}, {5}}));
  REQUIRE(!ring.holds({2}));
  for (int v = 3; v < 6; ++v)
    REQUIRE(right(ring, v));
  ring.forget_below({5});
  REQUIRE((ring.versions() == std::vector<version>{{5}}));
  REQUIRE(ring.usage().memory_bytes == bytes);
  REQUIRE(ring.usage().refused == 0);
}

TEST_CASE("whatever comes, no budget is exceeded and what is held is right") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    INFO("seed " << seed);
    random_stream random{seed, 3};
    scratch_folder dir;
    ring_limits limits{static_cast<std::int32_t>(1 + random.below(6)), 0,
                       static_cast<std::int64_t>(random.below(4)) * bytes + 7,
                       static_cast<std::int64_t>(random.below(4)) * bytes + 7, dir.path / "ring"};
    {
      version_ring ring(limits);
      int v = 0;
      for (int i = 0; i < 40; ++i, v += 1 + static_cast<int>(random.below(2))) {
        auto kept = ring.put({v}, weights(v));
        auto room = limits.memory_bytes / bytes + limits.disk_bytes / bytes;
        REQUIRE(kept == (room > 0));
        if (random.below(5) == 0)
          ring.forget_below({v - static_cast<int>(random.below(4))});
        auto held = ring.versions();
        REQUIRE(static_cast<std::int64_t>(held.size()) <= std::min<std::int64_t>(limits.versions, room));
        REQUIRE(std::is_sorted(held.begin(), held.end()));
        for (auto h : held)
          REQUIRE(right(ring, h.value));
        auto u = ring.usage();
        REQUIRE(u.memory_bytes <= limits.memory_bytes);
        REQUIRE(u.disk_bytes <= limits.disk_bytes);
        REQUIRE(u.peak_memory_bytes <= limits.memory_bytes);
        REQUIRE(u.peak_disk_bytes <= limits.disk_bytes);
        REQUIRE(u.memory_bytes + u.disk_bytes == static_cast<std::int64_t>(held.size()) * bytes);
        std::int64_t on_disk = 0;
        if (fs::exists(limits.folder))
          for (const auto& f : fs::directory_iterator(limits.folder))
            on_disk += static_cast<std::int64_t>(f.file_size());
        REQUIRE(on_disk == u.disk_bytes);
      }
    }
    REQUIRE(!fs::exists(limits.folder));
  }
}

TEST_CASE("a disk that refuses counts as full") {
  scratch_folder dir;
  std::ofstream(dir.path / "file") << "no folder";
  version_ring ring(ring_limits{4, 0, 2 * bytes, 10 * bytes, dir.path / "file" / "below"});
  for (int v = 0; v < 5; ++v)
    REQUIRE(ring.put({v}, weights(v)));
  REQUIRE((ring.versions() == std::vector<version>{{3}, {4}}));
  REQUIRE(!ring.usage().disk_problem.empty());
  REQUIRE(right(ring, 3));
}

TEST_CASE("a reader beside a writer never sees half of two versions") {
  scratch_folder dir;
  version_ring ring(ring_limits{3, 0, 2 * bytes, 2 * bytes, dir.path / "ring"});
  ring.put({0}, weights(0));
  std::atomic<bool> end{false};
  std::atomic<int> wrong{0}, seen{0};
  std::thread reader([&] {
    auto into = at::zeros({numbers});
    while (!end)
      for (auto v : ring.versions())
        if (ring.load(v, into)) {
          ++seen;
          wrong += into.equal(weights(v.value)) ? 0 : 1;
        }
  });
  for (int v = 1; v < 300; ++v)
    ring.put({v}, weights(v));
  end = true;
  reader.join();
  REQUIRE(seen > 0);
  REQUIRE(wrong == 0);
}
