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
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

using namespace millrace;
using namespace millrace::trainer;
using millrace::toy::scratch_folder;
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t numbers = 50;
constexpr std::int64_t bytes = numbers * 4;

at::Tensor weights(int v) { return at::full({numbers}, 0.1F + static_cast<float>(v)); }

bool right_as(version_ring& ring, int v, int content) {
  auto into = at::zeros({numbers});
  return ring.load({v}, into) && into.equal(weights(content));
}

bool right(version_ring& ring, int v) { return right_as(ring, v, v); }

fs::path only_folder_in(const fs::path& folder) {
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_directory())
      all.push_back(entry.path());
  REQUIRE(all.size() == 1);
  return all[0];
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
        for (const auto& f : fs::recursive_directory_iterator(limits.folder))
          on_disk += f.is_regular_file() ? static_cast<std::int64_t>(f.file_size()) : 0;
        REQUIRE(on_disk == u.disk_bytes);
      }
    }
    REQUIRE(!fs::exists(limits.folder));
  }
}

TEST_CASE("a folder that can't be written is refused before anything is kept") {
  scratch_folder dir;
  const auto file = dir.path / "file";
  std::ofstream(file) << "no folder";
  const auto refused = [](const fs::path& folder) {
    version_ring ring({4, 0, 2 * bytes, 10 * bytes, folder});
  };
  const auto begins = [](const fs::path& folder) {
    return Catch::StartsWith("algorithm.snapshot.folder: can't make " + folder.string()
                             + ": Not a directory");
  };
  REQUIRE_THROWS_WITH(refused(file), begins(file) && Catch::Contains("disk_bytes to 0"));
  REQUIRE_THROWS_WITH(refused(file / "below"), begins(file / "below"));
  REQUIRE_THROWS_WITH(
    refused("/proc/self/task"), // a folder, but nobody's to write
    Catch::StartsWith("algorithm.snapshot.folder: can't make a folder in /proc/"));
  version_ring not_asked_for(ring_limits{4, 0, 2 * bytes, 0, file / "below"});
}

TEST_CASE("a disk that refuses later counts as full, and is what is told") {
  scratch_folder dir;
  version_ring ring(ring_limits{4, 0, 2 * bytes, 10 * bytes, dir.path});
  const auto own = only_folder_in(dir.path);
  fs::create_symlink("/dev/full", own / "v0.f32");
  for (int v = 0; v < 5; ++v)
    REQUIRE(ring.put({v}, weights(v)));
  REQUIRE((ring.versions() == std::vector<version>{{3}, {4}}));
  REQUIRE(ring.usage().disk_bytes == 0);
  REQUIRE_THAT(ring.given_up(), Catch::StartsWith("algorithm.snapshot.folder: can't write ")
                                  && Catch::Contains(own.string())
                                  && Catch::Contains("No space left on device")
                                  && !Catch::Contains("budget"));
  REQUIRE(right(ring, 3));
}

TEST_CASE("a version whose file is gone, or cut short, is not held any more") {
  scratch_folder dir;
  version_ring ring(ring_limits{4, 0, 2 * bytes, 10 * bytes, dir.path});
  for (int v = 0; v < 4; ++v)
    REQUIRE(ring.put({v}, weights(v)));
  const auto own = only_folder_in(dir.path);
  fs::remove(own / "v0.f32");
  fs::resize_file(own / "v1.f32", bytes / 2);
  for (int v : {0, 1}) {
    REQUIRE(ring.holds({v}));
    REQUIRE_FALSE(right(ring, v));
    REQUIRE_FALSE(ring.holds({v}));
    REQUIRE_THAT(ring.given_up(), Catch::Contains("can't read") && Catch::Contains(own.string()));
  }
  REQUIRE(right(ring, 3));
}

TEST_CASE("budgets that are too small are told as such") {
  version_ring ring({.versions = 3, .memory_bytes = 2 * bytes});
  for (int v = 0; v < 3; ++v) {
    REQUIRE(ring.given_up().empty());
    ring.put({v}, weights(v));
  }
  REQUIRE_THAT(ring.given_up(), Catch::StartsWith("algorithm.snapshot: the budgets have no room"));
}

TEST_CASE("lives that share a folder on disk don't share what lies there") {
  scratch_folder dir;
  const ring_limits disk_only{4, 0, 0, 10 * bytes, dir.path / "versions"};
  const auto dead = ::fork();
  if (dead == 0) { // killed with two versions on disk
    version_ring ring(disk_only);
    const bool kept = ring.put({1}, weights(1)) && ring.put({2}, weights(2));
    ::_exit(kept ? 0 : 1);
  }
  int status = 1;
  REQUIRE(::waitpid(dead, &status, 0) == dead);
  REQUIRE(status == 0);
  const auto left = only_folder_in(disk_only.folder);
  REQUIRE(fs::exists(left / "v2.f32"));
  {
    version_ring next(disk_only);
    REQUIRE(!fs::exists(left));
    REQUIRE(!next.holds({2}));
    REQUIRE(next.put({2}, weights(7)));
    version_ring beside(disk_only); // which is alive
    REQUIRE(beside.put({2}, weights(9)));
    REQUIRE(right_as(next, 2, 7));
    REQUIRE(right_as(beside, 2, 9));
  }
  REQUIRE(!fs::exists(disk_only.folder));
}

TEST_CASE("a folder that was there stays") {
  scratch_folder dir;
  const ring_limits limits{2, 0, 0, 10 * bytes, dir.path / "versions"};
  fs::create_directories(limits.folder);
  REQUIRE(version_ring(limits).put({0}, weights(0)));
  REQUIRE(fs::is_empty(limits.folder));
  std::ofstream(limits.folder / "notes") << "mine";
  REQUIRE(version_ring(limits).put({0}, weights(0)));
  REQUIRE(fs::exists(limits.folder / "notes"));
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
  int v = 0;
  const auto put = [&] {
    ++v;
    ring.put({v}, weights(v));
    return v >= 300 && seen > 0;
  };
  while (!put() && v < 1'000'000) {
  }
  end = true;
  reader.join();
  REQUIRE(seen > 0);
  REQUIRE(wrong == 0);
}
