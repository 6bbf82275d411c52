// `millrace run` with a trainer of several ranks, as a user starts it.

#include "runtime/scratch_folder.hpp"
#include "test/actors/watched_program.hpp"

#include <catch2/catch.hpp>

#include <csignal>
#include <cstdlib>
#include <filesystem>

using namespace millrace;
using namespace millrace::test;
namespace fs = std::filesystem;

namespace {

nlohmann::json two_ranks(int steps) {
  auto j = tiny_cluster(steps);
  j.erase("cluster");
  j["run"]["checkpoint_every"] = 20;
  j["trainer"]["parallel"] = {{"dp", 2}, {"zero1", true}};
  return j;
}

/// As the run told it.
pid_t process_of_rank(const std::string& said, int rank) {
  auto text = "rank " + std::to_string(rank) + " is process ";
  auto at = said.find(text);
  return at == std::string::npos ? -1 : std::atoi(said.c_str() + at + text.size());
}

} // namespace

TEST_CASE("run: a killed rank ends it at once with a word on why, and --resume goes on") {
  scratch_folder folder("millrace-test");
  auto config = write(folder.path() / "c.json", two_ranks(endless));
  auto run = folder.path() / "run";
  watched first({"run", config, "--run-dir", run.string()});
  REQUIRE(first.says("step   30"));
  auto rank = process_of_rank(first.said(), 1);
  INFO(first.said());
  REQUIRE(rank > 0);
  REQUIRE(::kill(rank, SIGKILL) == 0);
  REQUIRE(first.ends() > 0);
  INFO(first.said());
  CHECK_THAT(first.said(), Catch::Contains("trainer rank 1 was killed by signal 9"));
  CHECK_THAT(first.said(), Catch::Contains("--resume"));
  CHECK(read(run / "summary.json")["ended"] == "failed");

  const int steps = first.steps() + 60;
  watched again({"run", config, "--run-dir", run.string(), "--resume",
                 "--set", "run.steps=" + std::to_string(steps)});
  CHECK(again.ends() == 0);
  INFO(again.said());
  CHECK_THAT(again.said(), Catch::Contains("going on from v"));
  auto summary = read(run / "summary.json");
  CHECK(summary["steps"] == steps);
  check_accounts(summary, 16);
  int shards = 0;
  for (const auto& entry : fs::recursive_directory_iterator(run / "checkpoints"))
    shards += entry.path().filename() == "optimizer-1-of-2.safetensors" ? 1 : 0;
  CHECK(shards > 0);
}

TEST_CASE("run: trainer.device \"cuda\" where no device is to be seen ends in one clear line") {
  scratch_folder folder("millrace-test");
  for (int dp : {1, 2}) {
    auto j = two_ranks(10);
    j["trainer"]["device"] = "cuda";
    j["trainer"]["parallel"] = {{"dp", dp}};
    watched run({"run", write(folder.path() / "c.json", j), "--run-dir",
                 (folder.path() / ("run" + std::to_string(dp))).string()},
                {"/usr/bin/env", "CUDA_VISIBLE_DEVICES="});
    CHECK(run.ends() > 0);
    INFO(run.said());
    const std::string line = "millrace: trainer.device: found \"cuda\"";
    const auto at = run.said().find(line);
    REQUIRE(at != std::string::npos);
    CHECK(run.said().find("millrace: ", at + 1) == std::string::npos);
    CHECK(run.said().find('\n', at) + 1 == run.said().size()); // the last line, too
  }
}
