// Training whose answers come from another process: `millrace serve`, behind OpenAI's API.

#include "actors/node_processes.hpp"
#include "actors/training_run.hpp"
#include "runtime/error.hpp"
#include "runtime/scratch_folder.hpp"

#include <catch2/catch.hpp>
#include <httplib.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <csignal>
#include <fstream>
#include <vector>

using namespace millrace;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

settings tiny(int steps) {
  settings s;
  s.seed = 5;
  s.run.steps = steps;
  s.run.checkpoint_every = steps;
  s.run.log_every = 1;
  s.model.architecture = {.layers = 1, .hidden = 32, .heads = 2, .kv_heads = 1,
                          .intermediate = 64, .max_positions = 48};
  s.data.held_out = 20;
  s.data.arithmetic.max_operand = 9;
  s.rollout = {.eta = 1, .batch_size = 16, .group_size = 4, .max_concurrent = 32};
  s.sampling.max_tokens = 6;
  s.generator.max_batch = 16;
  s.eval.prompts = 20;
  s.log.level = log_level::error;
  return s;
}

json lines_of(const fs::path& file) {
  auto all = json::array();
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    all.push_back(json::parse(line));
  return all;
}

fs::path newest_model(const fs::path& run) {
  std::ifstream in(run / "checkpoints" / "latest");
  std::string name;
  REQUIRE(std::getline(in, name));
  return run / "checkpoints" / name / "model";
}

/// `millrace serve` as a process of its own.
class serving_process {
public:
  explicit serving_process(const fs::path& folder)
    : children_([this](const std::string&, std::string_view line) {
        said_ += std::string(line) + "\n";
        const auto at = line.find("http://");
        if (url_.empty() && at != line.npos)
          url_ = line.substr(at, line.rfind("/v1") - at);
      }) {
    children_.start("server", {MILLRACE_PROGRAM, "serve", folder.string(), "--port", "0"});
    for (int i = 0; i < 100 && url_.empty() && children_.running() > 0; ++i)
      children_.watch(0.1);
    INFO(said_);
    REQUIRE_FALSE(url_.empty());
  }
  ~serving_process() {
    children_.signal_all(SIGTERM);
    for (int i = 0; i < 50 && children_.running() > 0; ++i)
      children_.watch(0.1);
  }
  [[nodiscard]] const std::string& url() const { return url_; }
  [[nodiscard]] std::int64_t sampled() const {
    const auto r = httplib::Client(url_).Get("/health");
    REQUIRE(r);
    return json::parse(r->body)["sampled_tokens"];
  }
  /// Loads these weights; returns how many times that has been done.
  [[nodiscard]] std::int64_t reload(const fs::path& folder) const {
    const auto r = httplib::Client(url_).Post("/reload", json{{"path", folder.string()}}.dump(),
                                              "application/json");
    REQUIRE(r);
    return json::parse(r->body)["version"];
  }

private:
  std::string url_, said_;
  node_processes children_;
};

} // namespace

TEST_CASE("a run whose answers come from a server with OpenAI's API") {
  const scratch_folder folder("millrace-openai");
  run_training({.options = tiny(1), .directory = folder.path() / "first", .quiet = true});
  const auto model = newest_model(folder.path() / "first");
  const serving_process server(model);

  auto s = tiny(8);
  s.model.path = model.string();
  s.generator.backend = {"openai", {{"endpoint", server.url()},
                                    {"folder", (folder.path() / "weights").string()}}};
  run_training({.options = s, .directory = folder.path() / "run", .quiet = true});

  std::ifstream in(folder.path() / "run" / "summary.json");
  const auto summary = json::parse(in);
  INFO(summary.dump());
  REQUIRE(summary["steps"] == 8);
  REQUIRE(summary["rollouts"]["trained"] == 8 * 16);
  REQUIRE(summary["staleness_max"].get<int>() <= 1);
  REQUIRE(server.sampled() >= summary["trained_tokens"].get<std::int64_t>() - 8 * 16);
  // Every step's weights went there; the last version's are asked for by none.
  REQUIRE(server.reload(newest_model(folder.path() / "run")) >= 8);
  // Where nothing is stale, the server's log-probs are those of the trainer's newest weights: with
  // weights one step older they would differ by some 1e-3.
  s.rollout.eta = 0;
  s.trainer.minibatches = 1; // what is compared is θ at each minibatch
  s.run.steps = 5;
  run_training({.options = s, .directory = folder.path() / "exact", .quiet = true});
  int steps = 0;
  for (const auto& line : lines_of(folder.path() / "exact" / "metrics.jsonl"))
    if (line["kind"] == "step") {
      ++steps;
      INFO(line.dump());
      REQUIRE(line["staleness_max"] == 0);
      REQUIRE(line["max_abs_prob_diff"].get<double>() < 1e-6);
    }
  REQUIRE(steps == 5);
}
