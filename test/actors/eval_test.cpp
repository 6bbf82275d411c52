// `millrace eval`: how it judges, and what it tells.

#include "actors/training_run.hpp"
#include "runtime/scratch_folder.hpp"
#include "test/actors/watched_program.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using namespace millrace;
using nlohmann::json;
using test::watched;
namespace fs = std::filesystem;

namespace {

constexpr int questions = 12;

/// A run of one step, and a file of questions.
class small_run {
public:
  small_run() {
    settings s;
    s.run.steps = 1;
    s.model.architecture = {.layers = 1, .hidden = 32, .heads = 2, .kv_heads = 1,
                            .intermediate = 64, .max_positions = 48};
    s.data.held_out = 4;
    s.data.arithmetic.max_operand = 9;
    s.rollout = {.eta = 1, .batch_size = 16, .group_size = 4, .max_concurrent = 32};
    s.sampling.max_tokens = 6;
    s.reward.correct = 2;
    s.reward.wrong = -1;
    s.eval.prompts = 4;
    s.log.level = log_level::error;
    run_training({.options = s, .directory = run(), .quiet = true});
    std::ofstream out(data());
    for (int i = 0; i < questions; ++i)
      out << json{{"question", std::to_string(i % 10) + "+1="}, {"answer", std::to_string(i % 10 + 1)}}
          << "\n";
  }
  [[nodiscard]] fs::path run() const { return folder_.path() / "run"; }
  [[nodiscard]] fs::path data() const { return folder_.path() / "data.jsonl"; }
  [[nodiscard]] fs::path model() const {
    for (const auto& e : fs::directory_iterator(run() / "checkpoints"))
      if (fs::exists(e.path() / "model"))
        return e.path() / "model";
    FAIL("no checkpoint");
    return {};
  }
  /// `millrace eval MODEL DATA`, with more; its result.
  [[nodiscard]] json eval(const fs::path& model, std::vector<std::string> more) const {
    std::vector<std::string> all{"eval", model.string(), data().string(), "--json",
                                 "--max-tokens", "3", "--temperature", "1"};
    all.insert(all.end(), more.begin(), more.end());
    watched program(all);
    const int status = program.ends();
    INFO(program.said());
    REQUIRE(status == 0);
    const auto said = program.said();
    return json::parse(said.substr(said.find('{'), said.rfind('}') - said.find('{') + 1));
  }

private:
  scratch_folder folder_{"millrace-eval"};
};

} // namespace

TEST_CASE("eval judges a run's model as the run did, and tells pass@k") {
  const small_run r;
  const auto told = r.eval(r.run(), {"--samples", "4", "--pass-at", "1,4"});
  INFO(told.dump());
  REQUIRE(told["questions"] == questions);
  REQUIRE(told["complete_questions"] == questions);
  REQUIRE(told["answers"] == 4 * questions);
  REQUIRE(told["reward_kind"] == "numeric");
  const auto accuracy = told["accuracy"].get<double>();
  REQUIRE(told["reward"].get<double>() == Approx(2 * accuracy - (1 - accuracy)));
  REQUIRE(told["pass_at"]["1"].get<double>() == Approx(accuracy));
  REQUIRE(told["pass_at"]["4"].get<double>() >= accuracy);
  REQUIRE(told["failed"] == 0);
  // A model's folder says nothing of rewards.
  const auto plain = r.eval(r.model(), {});
  REQUIRE(plain["reward"].get<double>() == Approx(plain["accuracy"].get<double>()));

  for (const auto& wrong : std::vector<std::vector<std::string>>{
         {"--samples", "4"}, {"--samples", "4", "--temperature", "1", "--pass-at", "5"}}) {
    std::vector<std::string> all{"eval", r.run().string(), r.data().string()};
    all.insert(all.end(), wrong.begin(), wrong.end());
    watched program(all);
    REQUIRE(program.ends() > 0);
    INFO(program.said());
    REQUIRE(program.said().find(wrong.size() == 2 ? "--temperature" : "from 1 to the 4")
            != std::string::npos);
  }
}

TEST_CASE("eval judges with a plugin's reward") {
  const small_run r;
  const auto config = test::write(
    r.run() / "judge.json",
    {{"plugins", {{{"path", std::string(PLUGINS) + "/libreward.so"}}}},
     {"reward", {{"kind", "brief"}, {"params", {{"free", 0}, {"per_byte", 0.25}}}}}});
  const auto told = r.eval(r.model(), {"--config", config});
  INFO(told.dump());
  REQUIRE(told["reward_kind"] == "brief");
  const auto free = r.eval(r.model(), {"--config", config, "--reward", "brief",
                                       "--reward-params", R"({"free": 100})"});
  REQUIRE(free["reward"].get<double>() == Approx(free["accuracy"].get<double>()));
  REQUIRE(r.eval(r.model(), {"--config", config, "--reward", "exact"})["reward_kind"] == "exact");
}
