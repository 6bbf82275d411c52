#include "actors/http_client.hpp"
#include "actors/top_view.hpp"
#include "actors/training_run.hpp"
#include "runtime/error.hpp"
#include "runtime/metrics/catalogue.hpp"
#include "runtime/metrics/exposition.hpp"
#include "runtime/metrics/lookup.hpp"
#include "runtime/scratch_folder.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <atomic>
#include <fstream>
#include <set>
#include <thread>

using namespace millrace;
namespace fs = std::filesystem;

namespace {

settings small_run() {
  settings s;
  s.seed = 5;
  s.run.steps = 100'000;
  s.run.checkpoint_every = 0;
  s.run.eval_every = 3;
  s.model.architecture = {.layers = 1, .hidden = 32, .heads = 2, .kv_heads = 1,
                          .intermediate = 64, .max_positions = 48};
  s.data.held_out = 8;
  s.data.arithmetic.max_operand = 9;
  s.rollout = {.eta = 2, .batch_size = 16, .group_size = 4, .max_concurrent = 64};
  s.sampling.max_tokens = 6;
  s.generator.count = 2;
  s.generator.max_batch = 16;
  s.algorithm.old_logits = old_logits_source::dedicated; // so that every kind of actor is there
  s.eval.prompts = 4;
  s.log.level = log_level::error;
  s.log.tensorboard = true;
  return s;
}

} // namespace

TEST_CASE("run: everything is visible while it runs, every metric with a value from its actor") {
  scratch_folder folder("millrace-test");
  auto run_folder = folder.path() / "run";
  std::atomic<bool> done{false};
  std::string metrics_text, failure;
  top_frame frame;
  std::thread watcher;
  run_request request{.options = small_run(), .directory = run_folder, .quiet = true};
  request.interrupted = [&] { return done.load(); };
  request.started = [&](auto&&...) {
    watcher = std::thread([&] {
      try {
        auto run = find_run(run_folder.string());
        test::comes_true([&] {
          frame = read_top_frame(nlohmann::json::parse(http_get(run, "introspect").body));
          return total(frame.actors, metrics::steps_trained) >= 30 && frame.rates.trained > 0
                 && total(frame.actors, metrics::cpu_time) > 0;
        });
        metrics_text = http_get(run, "metrics").body;
      } catch (const std::exception& e) {
        failure = e.what();
      }
      done = true;
    });
  };
  CHECK(run_training(request) == run_outcome::interrupted);
  watcher.join();
  REQUIRE(failure == "");

  std::set<std::string> kinds;
  for (const auto& a : frame.actors)
    kinds.insert(a.kind);
  for (const auto* kind : {"process", "supervisor", "controller", "publisher", "recorder", "generator",
                           "receiver", "reward", "replay", "trainer", "train_worker", "evaluator",
                           "old_logits"}) {
    INFO(kind);
    CHECK(kinds.contains(kind));
  }
  for (const auto* m : catalogue()) {
    INFO(m->name);
    CHECK(metrics_text.find("# HELP " + m->name + " ") != std::string::npos);
  }
  std::span<const actor_snapshot> a(frame.actors);
  using namespace metrics;
  // No rates: between two steps they are rightly 0.
  for (const metric* m : std::initializer_list<const metric*>{
         &rollouts_admitted, &rollouts_ended, &admission_outstanding, &admission_budget, &generators_up,
         &stream_version, &tokens_generated, &generator_busy, &generator_version, &kv_cache_capacity,
         &answers, &swap_bytes, &answers_scored, &replay_capacity, &replay_inserted,
         &replay_handed_out, &steps_trained, &rollouts_trained, &tokens_trained, &trainer_busy,
         &learning_rate, &batch_length, &entropy,
         &effective_sample_size, &staleness_bound, &versions_published, &pulls, &evaluations,
         &resident_memory, &cpu_time, &uptime, &threads, &publish_bytes}) {
    INFO(m->info().name);
    CHECK(total(a, *m) > 0);
  }
  for (const histogram* h : {&answer_length, &swap_pause, &swap_total, &score_latency, &trained_staleness}) {
    INFO(h->info().name);
    CHECK(merged(a, *h).count() > 0);
  }
  for (const char* stage : {"wait", "forward_backward", "total"})
    CHECK(merged(a, step_time, stage).count() > 0);
  CHECK(total(a, generator_version) > 0);
  CHECK(frame.rates.trained > 0);
  CHECK(total(a, rollouts_ended, "trained") <= total(a, rollouts_admitted));
  // What was shown agrees with what is kept.
  CHECK_FALSE(fs::exists(run_folder / "monitor.json"));
  CHECK(fs::exists(run_folder / "tensorboard"));
  std::ifstream in(run_folder / "metrics.jsonl");
  nlohmann::json last;
  for (std::string line; std::getline(in, line);)
    if (auto j = nlohmann::json::parse(line); j["kind"] == "step")
      last = j;
  for (const char* key : {"useful_tokens", "pause_s", "sync_total_s", "sync_pull_s", "sync_verify_s",
                          "sync_load_s", "sync_prefill_s", "reprefilled_tokens", "discarded_tokens",
                          "generator_idle", "trainer_idle", "bubble"}) {
    INFO(key);
    CHECK(last.contains(key));
  }
}
