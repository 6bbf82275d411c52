// Checkpoints of which each rank writes its own part.

#include "trainer/checkpoint_shards.hpp"

#include "runtime/error.hpp"
#include "runtime/model/safetensors.hpp"
#include "test/patience.hpp"
#include "test/trainer/ranks.hpp"
#include "test/trainer/scratch_folder.hpp"
#include "trainer/checkpoint.hpp"

#include <catch2/catch.hpp>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>

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

const shard_plan two_ranks{{2, 1}, true};

/// A shard whose numbers all are its version.
std::vector<float> shard_of(std::int32_t v) { return std::vector<float>(20000, float(v)); }
std::vector<tensor_view> view_of_shard(std::vector<float>& numbers) {
  return {{"exp_avg/w", dtype::f32, {std::int64_t(numbers.size())},
           reinterpret_cast<std::byte*>(numbers.data())}};
}

/// Rank 1 of a run that does nothing but save: writes its part wherever rank 0 says.
[[noreturn]] void save_as_rank_1(int orders) {
  shard_writer writer;
  fs::path::string_type line;
  std::int32_t v = 0;
  for (char c; ::read(orders, &c, 1) == 1;) {
    if (c != '\n') {
      line += c;
      continue;
    }
    auto numbers = shard_of(++v);
    writer.begin(copy_of(view_of_shard(numbers)), line, two_ranks.file(1));
    line.clear();
  }
  ::_exit(0);
}

/// Rank 0 of it: one version after the other, until it or the other is killed.
[[noreturn]] void save_as_rank_0(checkpoint_store& store, int orders, pid_t other) {
  ::signal(SIGPIPE, SIG_IGN);
  auto lost = [other] {
    return ::waitpid(other, nullptr, WNOHANG) == 0 ? std::string() : std::string("rank 1 is gone");
  };
  try {
    for (std::int32_t v = 1;; ++v) {
      auto aside = store.make_aside();
      auto line = aside.string() + "\n";
      if (::write(orders, line.data(), line.size()) < 0)
        break;
      store.save({v}, [&](const fs::path& folder) {
        auto numbers = shard_of(v);
        model::write_safetensors(folder / two_ranks.file(0), view_of_shard(numbers));
        gather_shards(two_ranks, aside, folder, lost, 60);
      }, {});
    }
  } catch (const std::exception&) {
    // Rank 1 is gone: this checkpoint is given up.
  }
  ::_exit(0);
}

float version_in(const fs::path& shard) {
  auto file = model::safetensors_file(shard);
  const auto& t = file.tensors().at("exp_avg/w");
  std::vector<float> all(static_cast<std::size_t>(t.elements()));
  std::memcpy(all.data(), t.data, t.bytes());
  REQUIRE(std::all_of(all.begin(), all.end(), [&](float x) { return x == all[0]; }));
  return all[0];
}

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
  REQUIRE_THROWS_WITH(gather("trainer rank 1 was killed by signal 9", 1000),
                      Catch::Contains("rank 1 was killed"));
  REQUIRE(std::chrono::steady_clock::now() - began < test::patience);
  REQUIRE_THROWS_WITH(gather("", 0.05), Catch::Contains("sharded_checkpoints"));
  write(dir.path / "from" / (plan.file(1) + ".failed"), "No space left on device");
  REQUIRE_THROWS_WITH(gather("", 60), Catch::Contains("No space left on device"));
  fs::remove(dir.path / "from" / (plan.file(1) + ".failed"));
  write(dir.path / "from" / plan.file(1), "all of it");
  gather("", 60);
  REQUIRE(fs::exists(dir.path / "to" / plan.file(1)));
}

TEST_CASE("shards: any rank killed at any moment of a save leaves a whole checkpoint of one version") {
  scratch_folder dir;
  checkpoint_store store(dir.path, 2, [](const std::string&) {});
  std::mt19937 rng{11};
  std::int64_t last = 0;
  int found_any = 0;
  for (int round = 0; round < 100; ++round) {
    INFO("round " << round);
    auto whole_run = ::fork();
    REQUIRE(whole_run >= 0);
    if (whole_run == 0) {
      ::setpgid(0, 0);
      int orders[2];
      if (::pipe(orders) != 0)
        ::_exit(1);
      auto other = ::fork();
      if (other == 0) {
        ::close(orders[1]);
        save_as_rank_1(orders[0]);
      }
      ::close(orders[0]);
      if (round % 3 == 0) { // rank 1 alone, by a killer of its own
        if (::fork() == 0) {
          ::usleep(static_cast<useconds_t>(rng() % 40000));
          ::kill(other, SIGKILL);
          ::_exit(0);
        }
      }
      save_as_rank_0(store, orders[1], other);
    }
    ::setpgid(whole_run, whole_run);
    ::usleep(static_cast<useconds_t>(rng() % 40000));
    if (round % 3 == 1) // rank 0 alone: rank 1 ends with its orders
      ::kill(whole_run, SIGKILL);
    else if (round % 3 == 2)
      ::kill(-whole_run, SIGKILL);
    ::waitpid(whole_run, nullptr, 0);
    ::kill(-whole_run, SIGKILL); // whoever is left
    auto found = store.newest();
    if (!found)
      continue; // the first one was never finished
    ++found_any;
    REQUIRE(found->sequence >= last);
    last = found->sequence;
    REQUIRE(version_in(found->folder / two_ranks.file(0)) == float(found->at.value));
    REQUIRE(version_in(found->folder / two_ranks.file(1)) == float(found->at.value));
  }
  REQUIRE(found_any > 50);
  REQUIRE(last > 1);
}
