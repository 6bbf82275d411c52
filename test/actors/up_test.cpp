// What `millrace up` does when its processes end, and what they do when it ends.

#include "runtime/scratch_folder.hpp"
#include "test/actors/watched_program.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <unistd.h>
#include <utility>

using namespace millrace;
using test::check_accounts, test::endless, test::read, test::tiny_cluster, test::watched, test::write;

namespace {

/// Whether it ends in time. What has ended and was not asked for how, by its new parent, is gone, too.
bool is_gone(pid_t process) {
  REQUIRE(process > 0);
  for (int i = 0; i < 100; ++i) {
    std::ifstream in("/proc/" + std::to_string(process) + "/stat");
    std::string stat;
    std::getline(in, stat);
    if (auto name_ends = stat.rfind(')');
        name_ends == std::string::npos || stat.substr(name_ends, 3) == ") Z")
      return true;
    usleep(100'000);
  }
  return false;
}

} // namespace

TEST_CASE("up: itself killed, nobody is left, and --resume goes on") {
  scratch_folder folder("millrace-test");
  auto j = tiny_cluster(endless);
  j["run"]["checkpoint_every"] = 20;
  auto config = write(folder.path() / "c.json", j);
  auto run = folder.path() / "run";
  watched first({"up", config, "--run-dir", run.string()});
  for (const auto* node : {"gen0", "gen1", "judge"})
    REQUIRE(first.says("node " + std::string(node) + " is up"));
  REQUIRE(first.has_checkpoint(run));
  auto head = read(run / "monitor.json")["pid"].get<pid_t>();
  first.signal(SIGKILL);
  CHECK(first.ends(20) != 0);
  for (auto process : {head, first.node("gen0"), first.node("gen1"), first.node("judge")})
    CHECK(is_gone(process));
  const int steps = first.steps() + 100;
  watched again({"up", "--run-dir", run.string(), "--resume",
                 "--set", "run.steps=" + std::to_string(steps)});
  CHECK(again.ends() == 0);
  auto summary = read(run / "summary.json");
  CHECK(summary["steps"] == steps);
  check_accounts(summary, 16);
}

TEST_CASE("up and run: whoever reads their output goes away, and they go on to their end") {
  scratch_folder folder("millrace-test");
  auto j = tiny_cluster(60);
  auto cluster = write(folder.path() / "cluster.json", j);
  j.erase("cluster");
  auto alone = write(folder.path() / "alone.json", j);
  for (const auto& [command, config] : {std::pair{"up", cluster}, {"run", alone}}) {
    auto run = folder.path() / command;
    const auto line = "timeout 60 " MILLRACE_PROGRAM " " + std::string(command) + " " + config + " --run-dir "
                      + run.string() + " | head -n 1";
    CHECK(std::system(("bash -o pipefail -c '" + line + "'").c_str()) == 0);
    CHECK(read(run / "summary.json")["ended"] == "done");
  }
}

TEST_CASE("up: where nobody else can do what a node can't begin with, the cluster ends") {
  scratch_folder folder("millrace-test");
  auto j = tiny_cluster(endless);
  j["generator"]["device"] = "cuda"; // which the trainer's node does not need
  watched up({"up", write(folder.path() / "c.json", j), "--run-dir", (folder.path() / "run").string()});
  const auto status = up.ends(60);
  if (status == -1) {
    WARN("not tried: there is a GPU here");
    return;
  }
  CHECK(status == 2);
  CHECK_THAT(up.said(), Catch::Contains("generator.device") && Catch::Contains("it stays down")
                          && Catch::Contains("so the cluster ends: no other node has a generator"));
}

TEST_CASE("up: a node that stays down is done without as long as another one does its work") {
  scratch_folder folder("millrace-test");
  auto j = tiny_cluster(endless);
  j["supervisor"]["max_restarts"] = 0;
  auto config = write(folder.path() / "c.json", j);
  auto run = folder.path() / "run";
  watched up({"up", config, "--run-dir", run.string()});
  for (const auto* node : {"gen0", "gen1", "judge"})
    REQUIRE(up.says("node " + std::string(node) + " is up"));
  kill(up.node("gen0"), SIGKILL);
  REQUIRE(up.says("node gen0 is gone"));
  CHECK(up.says("it stays down: supervisor.max_restarts is reached"));
  CHECK(up.trains_on(50));
  kill(up.node("judge"), SIGKILL);
  CHECK(up.says("so the cluster ends: no other node has a reward actor"));
  CHECK(up.ends() == 1);
  check_accounts(read(run / "summary.json"), 16);
}
