#include "actors/message_types.hpp"
#include "actors/policy_backend.hpp"
#include "actors/shell.hpp"
#include "actors/training_run.hpp"
#include "runtime/config/config.hpp"
#include "runtime/error.hpp"
#include "runtime/run_directory.hpp"
#include "runtime/scratch_folder.hpp"
#include "test/actors/sequential_loop.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

using namespace millrace;
namespace fs = std::filesystem;

namespace {

struct temporary_folder : scratch_folder {
  temporary_folder() : scratch_folder("millrace-test") {}
  [[nodiscard]] fs::path operator/(const char* name) const { return path() / name; }
};

settings tiny() {
  settings s;
  s.seed = 5;
  s.run.steps = 6;
  s.run.checkpoint_every = 2;
  s.model.architecture = {.layers = 1, .hidden = 32, .heads = 2, .kv_heads = 1,
                          .intermediate = 64, .max_positions = 48};
  s.data.held_out = 20;
  s.data.arithmetic.max_operand = 9;
  s.rollout = {.eta = 0, .batch_size = 16, .group_size = 4, .max_concurrent = 64};
  s.sampling.max_tokens = 6;
  s.generator.max_batch = 16;
  s.eval.prompts = 20;
  s.log.level = log_level::error;
  return s;
}

std::string bytes(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}

nlohmann::json summary(const fs::path& run) {
  return nlohmann::json::parse(bytes(run / "summary.json"));
}

fs::path newest_checkpoint(const fs::path& run) {
  auto name = bytes(run / "checkpoints" / "latest");
  while (!name.empty() && name.back() == '\n')
    name.pop_back();
  return run / "checkpoints" / name;
}

std::int64_t sum_of_states(const nlohmann::json& rollouts) {
  std::int64_t sum = 0;
  for (const char* s : {"trained", "dropped", "filtered", "failed", "in_flight"})
    sum += rollouts.at(s).get<std::int64_t>();
  return sum;
}

} // namespace

TEST_CASE("run: deterministic at η = 0 equals the sequential loop bit for bit") {
  temporary_folder folder;
  auto s = tiny();
  s.deterministic = true;
  run_training({.options = s, .directory = folder / "run", .quiet = true});
  fs::create_directories(folder / "loop");
  sequential_loop(s, folder / "loop");
  auto streamed = bytes(newest_checkpoint(folder / "run") / "model" / "model.safetensors");
  auto looped = bytes(folder / "loop" / "model.safetensors");
  REQUIRE(streamed.size() == looped.size());
  REQUIRE(streamed == looped);
}

TEST_CASE("run: interrupted and resumed, deterministic, gives the same parameters as one run") {
  temporary_folder folder;
  auto s = tiny();
  s.deterministic = true;
  s.run.steps = 200;
  run_training({.options = s, .directory = folder / "whole", .quiet = true});
  // Its fourth step waits until the end is about to be asked for.
  std::atomic<bool> fourth{false}, told{false};
  run_request part{.options = s, .directory = folder / "parts", .quiet = true};
  part.interrupted = [&] {
    told = fourth.load();
    return told.load();
  };
  auto observer = std::make_shared<step_observer>();
  part.observer = observer;
  observer->after = [&](const train_batch& b, const trainer::step_statistics&) {
    fourth = b.training_from >= version{3};
    if (fourth)
      test::comes_true([&] { return told.load(); });
  };
  REQUIRE(run_training(part) == run_outcome::interrupted);
  REQUIRE(summary(folder / "parts")["steps"] < s.run.steps);
  std::ofstream(folder / "parts" / "summary.json") << R"({"wall_s": "a"})"; // damage is no obstacle
  auto rest = part;
  rest.resume = true;
  rest.interrupted = {};
  rest.observer = {};
  REQUIRE(run_training(rest) == run_outcome::done);
  REQUIRE(bytes(newest_checkpoint(folder / "whole") / "model" / "model.safetensors")
          == bytes(newest_checkpoint(folder / "parts") / "model" / "model.safetensors"));
  auto a = summary(folder / "whole"), b = summary(folder / "parts");
  REQUIRE(a["rollouts"]["trained"] == b["rollouts"]["trained"]);
  REQUIRE(b["rollouts"]["admitted"] == sum_of_states(b["rollouts"]));
  REQUIRE(a["trained_tokens"] == b["trained_tokens"]);
  REQUIRE(a["accuracy_after_step"] == s.run.steps);
  REQUIRE(b["accuracy_after_step"] == s.run.steps);
}

TEST_CASE("run: one that is interrupted while a slow program judges the held-out answers ends then") {
  temporary_folder folder;
  auto s = tiny();
  s.reward.kind = "program";
  s.reward.params = {{"command", {"sleep", "60"}}, {"timeout_s", 1}};
  s.data.held_out = s.eval.prompts = 400; // 400 s for all
  const auto began = std::chrono::steady_clock::now();
  const auto since = [&] { return std::chrono::steady_clock::now() - began; };
  REQUIRE(run_training({.options = s, .directory = folder / "run", .quiet = true,
                        .interrupted = [&] { return since() > std::chrono::seconds(2); }})
          == run_outcome::interrupted);
  REQUIRE(since() < test::patience);
}

TEST_CASE("run: one whose last checkpoint can't be written has failed") {
  temporary_folder folder;
  auto s = tiny();
  s.run.checkpoint_every = 0; // at its end only
  auto observer = std::make_shared<step_observer>();
  observer->after = [&](const train_batch& b, const trainer::step_statistics&) {
    if (b.training_from.value + 1 < s.run.steps)
      return;
    fs::remove_all(folder / "run" / "checkpoints");
    std::ofstream(folder / "run" / "checkpoints") << "no folder";
  };
  REQUIRE_THROWS_WITH(run_training({.options = s, .directory = folder / "run", .quiet = true,
                                    .observer = observer}),
                      Catch::Contains("writing the last checkpoint")
                        && Catch::Contains("checkpoints"));
  REQUIRE(summary(folder / "run")["ended"] == "failed");
}

TEST_CASE("run: one in which no answer can be judged ends, and says why") {
  temporary_folder folder;
  auto s = tiny();
  s.run.steps = 1'000'000;
  s.reward.kind = "program";
  s.reward.params = {{"command", {"cat"}}}; // what it was asked is no verdict
  REQUIRE_THROWS_WITH(run_training({.options = s, .directory = folder / "run", .quiet = true}),
                      Catch::Contains("no answer can be judged: the first 300 failed")
                        && Catch::Contains("program cat"));
  auto j = summary(folder / "run");
  REQUIRE(j["ended"] == "failed");
  REQUIRE(j["steps"] == 0);
  REQUIRE(j["rollouts"]["failed"] > 0);
  REQUIRE(j["rollouts"]["admitted"] == sum_of_states(j["rollouts"]));
  const auto lines = read_metrics(folder / "run" / "metrics.jsonl");
  REQUIRE(lines.back()["not_judged"] == lines.back()["answers"]);
}

TEST_CASE("run: staleness is used and bounded at η = 2, and the summary's sums hold") {
  temporary_folder folder;
  auto s = tiny();
  s.rollout.eta = 2;
  s.generator.count = 2;
  s.run.steps = 12;
  run_training({.options = s, .directory = folder / "run", .quiet = true});
  auto j = summary(folder / "run");
  REQUIRE(j["steps"] == 12);
  REQUIRE(j["staleness_max"].get<int>() <= 2);
  REQUIRE(j["rollouts"]["trained"] == 12 * 16);
  REQUIRE(j["rollouts"]["admitted"] == sum_of_states(j["rollouts"]));
  REQUIRE(j["rollouts"]["in_flight"].get<int>() <= 3 * 16);
  for (const char* file : {"config.json", "metrics.jsonl", "report.html", "log.txt"})
    REQUIRE(fs::exists(folder / "run" / file));
  REQUIRE_THAT(bytes(folder / "run" / "report.html"), Catch::Contains("Every rollout is accounted for"));
}

TEST_CASE("run: generators, reward workers and the replay buffer may die; nothing is lost") {
  temporary_folder folder;
  auto s = tiny();
  s.rollout.eta = 1;
  s.generator.count = 2;
  s.run.steps = 1'000'000; // it ends when all have been killed
  s.supervisor.max_restarts = 100;
  std::atomic<bool> ended{false}, done{false};
  std::atomic<int> killed{0};
  std::thread killer;
  run_request request{.options = s, .directory = folder / "run", .quiet = true};
  request.started = [&](caf::actor_system& system, const caf::actor& supervisor) {
    killer = std::thread([&, supervisor] {
      caf::scoped_actor self{system};
      const char* names[] = {"generator-0", "reward-0", "replay", "generator-1", "reward-1"};
      for (int i = 0; !ended && i < 15; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
        self->request(supervisor, within(test::patience_s), inspect_atom::value, std::string(names[i % 5]))
          .receive(
            [&](const caf::actor& victim) {
              self->send_exit(victim, caf::exit_reason::kill);
              ++killed;
            },
            [](const caf::error&) {});
      }
      done = true;
    });
  };
  request.interrupted = [&] { return done.load(); };
  std::string failure;
  try {
    CHECK(run_training(request) == run_outcome::interrupted);
  } catch (const std::exception& e) {
    failure = e.what();
  }
  ended = true;
  if (killer.joinable())
    killer.join();
  REQUIRE(failure == "");
  auto j = summary(folder / "run");
  INFO(j.dump());
  REQUIRE(j["steps"] > 0);
  REQUIRE(j["rollouts"]["trained"] == j["steps"].get<int>() * 16);
  REQUIRE(j["rollouts"]["admitted"] == sum_of_states(j["rollouts"]));
  REQUIRE(j["staleness_max"].get<int>() <= 1);
  REQUIRE(killed > 5);
}

TEST_CASE("run: a folder that holds another run is not overwritten") {
  temporary_folder folder;
  auto s = tiny();
  s.run.steps = 1;
  run_training({.options = s, .directory = folder / "run", .quiet = true});
  auto before = bytes(folder / "run" / "summary.json");
  REQUIRE_THROWS_AS(run_training({.options = s, .directory = folder / "run", .quiet = true}), user_error);
  REQUIRE(bytes(folder / "run" / "summary.json") == before);
}
