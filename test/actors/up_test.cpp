// What `millrace up` does when its processes end, and what they do when it ends.

#include "runtime/scratch_folder.hpp"
#include "test/actors/watched_program.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <unistd.h>
#include <utility>
#include <vector>

using namespace millrace;
using test::check_accounts, test::endless, test::read, test::tiny_cluster, test::watched;
using test::write;
namespace fs = std::filesystem;

namespace {

/// Whether it ends in time; also when its new parent has not yet asked how.
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

/// The process that is this node of this configuration, once there is one.
pid_t process_of(const std::string& config, const std::string& node) {
  const auto wanted = config + '\0' + "--name" + '\0' + node + '\0';
  pid_t found = -1;
  test::comes_true([&] {
    for (const auto& process : fs::directory_iterator("/proc")) {
      std::ifstream in(process.path() / "cmdline");
      const std::string line{std::istreambuf_iterator<char>(in), {}};
      if (line.find(wanted) != line.npos)
        found = std::atoi(process.path().filename().c_str());
    }
    return found > 0;
  });
  return found;
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
  CHECK(first.ends() != 0);
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
    const auto line = "timeout 60 " MILLRACE_PROGRAM " " + std::string(command) + " " + config
                      + " --run-dir " + run.string() + " | head -n 1";
    CHECK(std::system(("bash -o pipefail -c '" + line + "'").c_str()) == 0);
    CHECK(read(run / "summary.json")["ended"] == "done");
  }
}

TEST_CASE("up: where nobody else can do what a node can't begin with, the cluster ends") {
  scratch_folder folder("millrace-test");
  auto j = tiny_cluster(endless);
  j["generator"]["device"] = "cuda"; // which the trainer's node does not need
  auto config = write(folder.path() / "c.json", j);
  watched up({"up", config, "--run-dir", (folder.path() / "run").string()},
             {"/usr/bin/env", "CUDA_VISIBLE_DEVICES="}); // nor is there one where there are GPUs
  CHECK(up.ends() == 2);
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

TEST_CASE("up: away from the trainer's node, it waits for each of its nodes until none is left") {
  scratch_folder folder("millrace-test");
  auto j = tiny_cluster(endless);
  j["supervisor"]["max_restarts"] = 1;
  j["cluster"]["insecure"] = true;
  auto& nodes = j["cluster"]["nodes"];
  nodes[0]["host"] = "192.0.2.1"; // which is nobody's
  nodes[2]["actors"] = {{"generator", 1}, {"reward", 1}, {"replay", 1}};
  nodes.erase(3);
  auto config = write(folder.path() / "c.json", j);
  watched up({"up", config});
  const auto end = [&](const std::vector<std::string>& names) {
    std::vector<pid_t> processes;
    for (const auto& node : names) {
      processes.push_back(process_of(config, node));
      REQUIRE(processes.back() > 0);
    }
    for (const auto process : processes)
      kill(process, SIGKILL);
  };
  end({"gen0"});
  REQUIRE(up.says("gen0 | -- starts again (1 of 1)"));
  end({"gen1", "gen0"}); // nothing runs then, but gen1 is to start again
  CHECK(up.says("gen0 | -- it stays down"));
  CHECK(up.says("gen1 | -- starts again (1 of 1)"));
  end({"gen1"});
  CHECK(up.says("gen1 | -- it stays down"));
  CHECK(up.ends() == 1);
}
