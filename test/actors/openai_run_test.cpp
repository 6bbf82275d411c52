// Training whose answers come from another process: `millrace serve`, behind OpenAI's API.

#include "actors/node_processes.hpp"
#include "actors/training_run.hpp"
#include "runtime/error.hpp"
#include "runtime/scratch_folder.hpp"
#include "test/actors/watched_program.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>
#include <httplib.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <thread>
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
  explicit serving_process(const fs::path& folder, const std::string& port = "0")
    : children_([this](const std::string&, std::string_view line) {
        said_ += std::string(line) + "\n";
        const auto at = line.find("http://");
        if (url_.empty() && at != line.npos)
          url_ = line.substr(at, line.rfind("/v1") - at);
      }) {
    children_.start("server", {MILLRACE_PROGRAM, "serve", folder.string(), "--port", port});
    test::comes_true([this] {
      children_.watch(0.05);
      return !url_.empty() || children_.running() == 0;
    });
    INFO(said_);
    REQUIRE_FALSE(url_.empty());
  }
  ~serving_process() {
    children_.signal_all(SIGTERM);
    for (int i = 0; i < 50 && children_.running() > 0; ++i)
      children_.watch(0.1);
  }
  [[nodiscard]] const std::string& url() const { return url_; }
  [[nodiscard]] std::string port() const { return url_.substr(url_.rfind(':') + 1); }
  /// Waits until it is in the middle of answers, and has sampled so many tokens; false when it took
  /// too long.
  bool works(std::int64_t tokens) {
    const auto end = std::chrono::steady_clock::now() + test::patience;
    while (std::chrono::steady_clock::now() < end) {
      children_.watch(0); // what it says is taken, so that it never waits for that
      if (const auto r = httplib::Client(url_).Get("/health"))
        if (const auto now = json::parse(r->body);
            now["sampled_tokens"] >= tokens && now["outstanding"] > 0)
          return true;
    }
    return false;
  }
  /// Ends it without a word.
  void kill() {
    children_.signal_all(SIGKILL);
    while (children_.running() > 0)
      children_.watch(0.1);
  }
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

  const auto summary = test::read(folder.path() / "run" / "summary.json");
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

namespace {

/// Empty when the run ended well.
std::string failure_of(const run_request& request) {
  try {
    run_training(request);
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

} // namespace

TEST_CASE("a server killed in the middle of a batch: the run goes on with the next at its port") {
  const scratch_folder folder("millrace-openai-killed");
  run_training({.options = tiny(1), .directory = folder.path() / "first", .quiet = true});
  const auto model = newest_model(folder.path() / "first");
  auto server = std::make_unique<serving_process>(model);
  auto s = tiny(test::endless);
  s.model.path = model.string();
  s.log.level = log_level::warning;
  s.rollout.eta = 0; // so that each log-prob is compared with the trainer's of the same version
  s.trainer.minibatches = 1;
  s.trainer.lr = 1e-2; // versions that differ
  s.sampling.max_tokens = 24;
  s.generator.backend = {"openai", {{"endpoint", server->url()}, {"timeout_s", 60},
                                    {"folder", (folder.path() / "weights").string()}}};
  std::promise<void> over; // a child ends with the thread that started it
  std::atomic<int> killed{0};
  std::atomic<bool> done{false};
  std::thread killer([&, is_over = over.get_future()] {
    for (const int tokens : {400, 300}) {
      const auto port = server->port();
      killed += server->works(tokens) ? 1 : 0;
      server->kill();
      server.reset();
      server = std::make_unique<serving_process>(model, port); // with the weights of its start
    }
    server->works(300);
    done = true;
    is_over.wait();
    server.reset();
  });
  const auto why = failure_of({.options = s, .directory = folder.path() / "run", .quiet = true,
                               .interrupted = [&] { return done.load(); }});
  over.set_value();
  killer.join();
  REQUIRE(why.empty());
  REQUIRE(killed == 2);
  const auto summary = test::read(folder.path() / "run" / "summary.json");
  INFO(summary.dump());
  test::check_accounts(summary, 16);
  REQUIRE(summary["ended"] == "interrupted");
  REQUIRE(summary["steps"] > 0);
  REQUIRE(summary["rollouts"]["failed"] == 0);
  for (const auto& line : lines_of(folder.path() / "run" / "metrics.jsonl"))
    if (line["kind"] == "step") {
      INFO(line.dump());
      REQUIRE(line["staleness_max"] == 0);
      REQUIRE(line["max_abs_prob_diff"].get<double>() < 1e-5);
    }
  const auto log = text_of(folder.path() / "run" / "log.txt");
  INFO(log);
  REQUIRE(log.find("answers wait for it") != log.npos);
  REQUIRE(log.find("it is there now") != log.npos);
  REQUIRE(log.find("died") == log.npos);
}

TEST_CASE("a server killed and gone ends the run with its address and the accounts") {
  const scratch_folder folder("millrace-openai-gone");
  run_training({.options = tiny(1), .directory = folder.path() / "first", .quiet = true});
  const auto model = newest_model(folder.path() / "first");
  serving_process server(model);
  const auto url = server.url();
  auto s = tiny(test::endless);
  s.model.path = model.string();
  s.generator.backend = {"openai", {{"endpoint", url}, {"timeout_s", 1},
                                    {"folder", (folder.path() / "weights").string()}}};
  s.supervisor.max_restarts = 2;
  std::thread killer([&] {
    server.works(200);
    server.kill();
  });
  const auto why = failure_of({.options = s, .directory = folder.path() / "run", .quiet = true});
  killer.join();
  INFO(why);
  REQUIRE(why.find("generator-0 died: generator at " + url) == 0);
  const auto summary = test::read(folder.path() / "run" / "summary.json");
  INFO(summary.dump());
  test::check_accounts(summary, 16);
  REQUIRE(summary["rollouts"]["admitted"] > 0);
  REQUIRE(summary["ended"] == "failed");
}
