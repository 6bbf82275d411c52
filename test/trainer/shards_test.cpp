// Checkpoints of which each rank writes its own part.

#include "trainer/checkpoint_shards.hpp"

#include "runtime/error.hpp"
#include "test/trainer/ranks.hpp"
#include "test/trainer/scratch_folder.hpp"
#include "trainer/checkpoint.hpp"

#include <catch2/catch.hpp>

#include <chrono>
#include <filesystem>
#include <fstream>

using namespace millrace;
using namespace millrace::trainer;
using namespace millrace::toy;
namespace fs = std::filesystem;

namespace {

fs::path save(checkpoint_store& store, const policy& p) {
  auto aside = store.make_aside();
  auto copy = p.snapshot(aside);
  return store.save(p.current(), [&](const fs::path& folder) { copy.write(folder); }, {}).folder;
}

policy on_ranks(const settings& s) {
  return policy::create(s, nullptr, start_ranks(s, rank_command()));
}

policy on_ranks(const settings& s, const fs::path& folder) {
  return policy::load(s, folder, nullptr, start_ranks(s, rank_command()));
}

void write(const fs::path& file, const std::string& text) { std::ofstream(file) << text; }

} // namespace

TEST_CASE("shards: any dp and tp goes on from them, the same ones bit for bit", "[ranks]") {
  at::set_num_threads(1);
  scratch_folder dir;
  checkpoint_store store(dir.path, 5, [](const std::string&) {});
  auto s = grid_settings(2, 2, true);
  s.algorithm.old_logits = old_logits_source::ewma; // so that there are other tensors, too
  course straight;
  fs::path folder;
  {
    auto p = on_ranks(s);
    take(p, 0, 1);
    folder = save(store, p);
    straight = take(p, 1, 3);
  }
  for (int rank = 0; rank < 4; ++rank)
    REQUIRE(fs::exists(folder / shard_plan{{2, 2}, true}.file(rank)));
  REQUIRE(!fs::exists(folder / "optimizer.safetensors"));
  {
    auto p = on_ranks(s, folder);
    REQUIRE(same_bits(take(p, 1, 3).parameters, straight.parameters));
  }
  auto one = grid_settings(1, 1);
  one.algorithm.old_logits = s.algorithm.old_logits;
  auto alone = policy::load(one, folder);
  require_equal(take(alone, 1, 3), straight);
}

TEST_CASE("shards: of replicas that are alike only the first writes; dp 2 goes on as tp 2", "[ranks]") {
  at::set_num_threads(1);
  scratch_folder dir;
  checkpoint_store store(dir.path, 5, [](const std::string&) {});
  course straight;
  fs::path folder;
  {
    auto p = on_ranks(grid_settings(2, 1));
    take(p, 0, 1);
    folder = save(store, p);
    straight = take(p, 1, 2);
  }
  REQUIRE(fs::exists(folder / "optimizer-0-of-2.safetensors"));
  REQUIRE(!fs::exists(folder / "optimizer-1-of-2.safetensors"));
  auto p = on_ranks(grid_settings(1, 2), folder);
  require_equal(take(p, 1, 2), straight);
}

TEST_CASE("shards: a torn one is told, and the checkpoint before is used", "[ranks]") {
  at::set_num_threads(1);
  scratch_folder dir;
  std::string told;
  checkpoint_store store(dir.path, 5, [&](const std::string& text) { told += text + "\n"; });
  auto s = grid_settings(2, 1, true);
  auto p = on_ranks(s);
  take(p, 0, 1);
  auto first = save(store, p);
  take(p, 1, 2);
  auto second = save(store, p);
  auto shard = second / "optimizer-1-of-2.safetensors";
  fs::resize_file(shard, fs::file_size(shard) - 4);
  REQUIRE(store.newest()->folder == first);
  REQUIRE(told.find("optimizer-1-of-2.safetensors") != std::string::npos);
  REQUIRE(fs::is_empty(store.make_aside()));
}

TEST_CASE("shards that don't come: a dead rank, a full disk, another machine's disk") {
  scratch_folder dir;
  fs::create_directory(dir.path / "from");
  fs::create_directory(dir.path / "to");
  shard_plan plan{{2, 1}, true};
  auto gather = [&](const std::string& lost, double timeout_s) {
    gather_shards(plan, dir.path / "from", dir.path / "to", [=] { return lost; }, timeout_s);
  };
  auto began = std::chrono::steady_clock::now();
  REQUIRE_THROWS_WITH(gather("trainer rank 1 was killed by signal 9", 60),
                      Catch::Contains("rank 1 was killed"));
  REQUIRE(std::chrono::steady_clock::now() - began < std::chrono::seconds(5));
  REQUIRE_THROWS_WITH(gather("", 0.05), Catch::Contains("sharded_checkpoints"));
  write(dir.path / "from" / (plan.file(1) + ".failed"), "No space left on device");
  REQUIRE_THROWS_WITH(gather("", 60), Catch::Contains("No space left on device"));
  fs::remove(dir.path / "from" / (plan.file(1) + ".failed"));
  write(dir.path / "from" / plan.file(1), "all of it");
  gather("", 60);
  REQUIRE(fs::exists(dir.path / "to" / plan.file(1)));
}
