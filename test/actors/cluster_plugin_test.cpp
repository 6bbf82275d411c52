// A cluster whose nodes each do their part with plugins.

#include "runtime/scratch_folder.hpp"
#include "test/actors/watched_program.hpp"

#include <catch2/catch.hpp>

#include <csignal>

using namespace millrace;
using test::check_accounts, test::endless, test::read, test::tiny_cluster, test::watched;
using test::write;

namespace {

nlohmann::json with_plugins(int steps) {
  auto j = tiny_cluster(steps);
  auto plugins = nlohmann::json::array();
  for (const auto* name : {"prompts", "advantage", "loss", "sampler", "actor"})
    plugins.push_back({{"path", std::string(PLUGINS) + "/lib" + name + ".so"}});
  plugins.push_back({{"path", std::string(PLUGINS) + "/libreward.so"}, {"isolated", true}});
  j["plugins"] = plugins;
  j["data"] = {{"source", "backwards"}, {"params", {{"letters", 2}, {"held_out", 20}}}};
  j["reward"] = {{"kind", "brief"}, {"params", {{"free", 2}, {"per_byte", 0.1}}}};
  j["algorithm"] = {{"advantage", {{"name", "rank"}}}};
  j["generator"]["sampler"] = {{"name", "epsilon"}, {"params", {{"epsilon", 0.02}}}};
  j["actors"] = {{{"kind", "duplicates"}, {"params", {{"share", 1}}}}};
  return j;
}

} // namespace

TEST_CASE("cluster: plugins work in the nodes that need them, also in one that starts again") {
  scratch_folder folder("millrace-test");
  auto config = write(folder.path() / "c.json", with_plugins(endless));
  auto run = folder.path() / "run";
  watched up({"up", config, "--run-dir", run.string()});
  REQUIRE(up.says("node judge is up"));
  REQUIRE(up.says("node gen0 is up"));
  const auto first_life = up.node("gen0");
  kill(first_life, SIGKILL);
  REQUIRE(up.says("node gen0 is gone"));
  REQUIRE(up.comes_back("gen0", first_life));
  CHECK(up.trains_on(150));
  CHECK(watched({"down", config}).ends() == 0);
  CHECK(up.ends() == 130);
  auto summary = read(run / "summary.json");
  check_accounts(summary, 16);
  CHECK(summary["rollouts"]["failed"] == 0);
  CHECK(std::filesystem::exists(run / "groups.jsonl"));
}

TEST_CASE("cluster: a node that lacks a plugin says which, and the others wait for it") {
  scratch_folder folder("millrace-test");
  auto j = with_plugins(5);
  auto config = write(folder.path() / "c.json", j);
  j["plugins"][3]["path"] = (folder.path() / "libsampler.so").string();
  auto lacking = write(folder.path() / "lacking.json", j);
  watched node({"node", lacking, "--name", "gen0"});
  CHECK(node.ends() == 2);
  CHECK_THAT(node.said(), Catch::Contains("libsampler.so"));
}

TEST_CASE("check: parameters that a plugin doesn't take are found before a run") {
  scratch_folder folder("millrace-test");
  auto refused = [&](nlohmann::json j, const std::string& where) {
    j["plugins"].push_back({{"path", std::string(PLUGINS) + "/libenvironment.so"}});
    j["plugins"].push_back({{"path", std::string(PLUGINS) + "/libgenerator.so"}});
    watched check({"check", write(folder.path() / "c.json", j)});
    INFO(check.said());
    CHECK(check.ends() == (where.empty() ? 0 : 2));
    CHECK_THAT(check.said(), Catch::Contains(where.empty() ? "no errors" : where));
  };
  auto j = with_plugins(5);
  refused(j, {});
  auto wrong = j;
  wrong["generator"]["sampler"]["params"]["epsilom"] = 1;
  refused(wrong, "generator.sampler.params.epsilom");
  wrong = j;
  wrong["actors"][0]["params"]["share"] = "much";
  refused(wrong, "actors[0].params.share");
  wrong = j;
  wrong["reward"] = {{"kind", "environment"}};
  wrong["rollout"]["environment"] = {{"name", "calculator"}, {"params", {{"call", 2}}}};
  refused(wrong, "rollout.environment.params.call");
  wrong = j;
  wrong["generator"] = {{"backend", {{"name", "bigram"}, {"params", {{"n", 3}}}}}};
  refused(wrong, "generator.backend.params.n");
}
