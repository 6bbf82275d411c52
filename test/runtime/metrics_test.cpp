#include "runtime/error.hpp"
#include "runtime/metrics/catalogue.hpp"
#include "runtime/metrics/exposition.hpp"
#include "runtime/metrics/metric_set.hpp"
#include "runtime/metrics/process.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

using namespace millrace;

namespace {

actor_snapshot snapshot_of(const metric_set& values, std::string name) {
  actor_snapshot s;
  values.snapshot(s);
  s.name = std::move(name);
  s.node = "local";
  return s;
}

std::vector<actor_snapshot> one_of_each() {
  std::vector<actor_snapshot> out;
  std::set<std::string> owners;
  for (const auto* m : catalogue())
    if (m->owner != "actor" && owners.insert(m->owner).second)
      out.push_back(snapshot_of(metric_set(m->owner), m->owner + "-0"));
  return out;
}

} // namespace

TEST_CASE("every declaration is sound, and all names differ") {
  for (const auto& text : catalogue_problems())
    FAIL(text);
  std::set<std::string> names, keys;
  for (const auto* m : catalogue()) {
    REQUIRE(names.insert(m->name).second);
    REQUIRE((m->key.empty() || keys.insert(m->key).second));
    REQUIRE(m->name.starts_with("millrace_"));
    REQUIRE(!m->unit.empty());
  }
}

TEST_CASE("what practitioners watch is all there, with its meaning") {
  // The design's list, word for word and in its order, and what shows each.
  const std::vector<std::pair<const char*, std::vector<const char*>>> watched{
    {"staleness histogram in flight",
     {"in_flight_rollouts_by_staleness", "in_flight_staleness_versions"}},
    {"staleness histogram in queue", {"queue_rollouts_by_staleness", "queue_staleness_versions"}},
    {"staleness of what is trained: head, tail, span",
     {"trained_token_staleness_versions", "trained_rollout_staleness_versions",
      "batch_staleness_mean_versions", "batch_staleness_max_versions", "staleness_bound_versions"}},
    {"generator idle", {"generator_idle_ratio", "generator_idle_seconds_total",
                        "generator_busy_seconds_total", "generator_paused_seconds_total"}},
    {"trainer idle", {"trainer_idle_ratio", "trainer_busy_seconds_total",
                      "trainer_wait_seconds_total"}},
    {"bubble", {"bubble_ratio"}},
    {"tokens/s generated", {"tokens_generated_total", "tokens_generated_per_second"}},
    {"tokens/s trained", {"tokens_trained_total", "tokens_trained_per_second"}},
    {"tokens/s useful", {"tokens_useful_total"}},
    {"re-prefilled tokens", {"tokens_reprefilled_total"}},
    {"discarded tokens", {"tokens_discarded_total", "tokens_masked_total"}},
    {"queue depths", {"replay_rollouts", "replay_capacity_rollouts", "rollouts_in_state",
                      "generator_running_sequences", "generator_waiting_sequences",
                      "admission_outstanding_rollouts", "admission_budget_rollouts",
                      "mailbox_messages"}},
    {"sync pause", {"weight_swap_pause_seconds"}},
    {"sync total", {"weight_swap_total_seconds", "weight_swap_stage_seconds",
                    "weight_swap_bytes_total", "publish_bytes_total"}},
    {"ESS", {"effective_sample_size_ratio"}},
    {"clip fractions by sign", {"clip_fraction_positive_ratio", "clip_fraction_negative_ratio"}},
    {"mask fractions", {"mask_fraction_ratio"}},
    {"KL(infer‖train)", {"kl_infer_train_nats"}},
    {"entropy", {"entropy_nats"}},
    {"grad norm", {"grad_norm"}},
    {"reward mean/std", {"reward", "batch_reward_mean", "batch_reward_std"}},
    {"zero-variance groups", {"zero_variance_groups_total", "batch_zero_variance_groups"}},
    {"length", {"answer_length_tokens", "batch_answer_length_tokens"}},
    {"truncation", {"answers_total", "batch_truncated_ratio"}},
    {"RSS per process", {"resident_memory_bytes", "peak_resident_memory_bytes"}},
    {"seconds since last progress", {"seconds_since_progress"}},
  };
  for (const auto& [item, names] : watched)
    for (const auto* name : names) {
      INFO(item << ": " << name);
      const auto* m = find_metric(std::string("millrace_") + name);
      REQUIRE(m);
      REQUIRE(m->help.size() > 10);
      REQUIRE(!m->unit.empty());
    }
}

TEST_CASE("everything is emitted while it is zero") {
  const auto text = prometheus_text(one_of_each());
  for (const auto* m : catalogue()) {
    INFO(m->name);
    REQUIRE(text.find("# HELP " + m->name + " ") != std::string::npos);
    for (const auto& value : m->label_values)
      REQUIRE(std::regex_search(text, std::regex("\n" + m->name + "(_bucket)?\\{" + m->label + "=\""
                                                 + value + "\",")));
  }
}

TEST_CASE("the exposition keeps to the format: one block a metric, each line well formed") {
  auto actors = one_of_each();
  auto more = one_of_each();
  actors.insert(actors.end(), more.begin(), more.end());
  actors.back().name = "odd \"name\"\\\n";
  std::istringstream text(prometheus_text(actors));
  const std::regex sample(R"re(([a-z_0-9]+)\{([a-z]+="([^"\\]|\\.)*",?)+\} -?[0-9.e+-]+)re");
  std::set<std::string> seen;
  std::string current;
  for (std::string line; std::getline(text, line);) {
    INFO(line);
    if (line.starts_with("# HELP ")) {
      current = line.substr(7, line.find(' ', 7) - 7);
      REQUIRE(seen.insert(current).second);
    } else if (!line.starts_with("# TYPE ")) {
      REQUIRE(std::regex_match(line, sample));
      REQUIRE(line.starts_with(current));
    }
  }
}

TEST_CASE("counters add, gauges are set, unknown label values count as the last") {
  metric_set c("controller");
  c.add(metrics::rollouts_admitted);
  c.add(metrics::rollouts_admitted, 4);
  c.add(metrics::rollouts_dropped, "stale", 2);
  c.add(metrics::rollouts_dropped, "never heard of", 3);
  REQUIRE(c.value(metrics::rollouts_admitted) == 5);
  REQUIRE(c.value(metrics::rollouts_dropped, "stale") == 2);
  REQUIRE(c.value(metrics::rollouts_dropped, "other") == 3);
  REQUIRE(c.value(metrics::rollouts_dropped, "cancelled") == 0);
  c.set(metrics::in_flight_by_staleness, metrics::staleness_label(12), 7);
  REQUIRE(c.value(metrics::in_flight_by_staleness, "over") == 7);
  REQUIRE_THROWS_AS(c.add(metrics::tokens_generated), invariant_error);
  metric_set t("trainer");
  t.set_keys({{"entropy", 0.5}, {"no such", 1}});
  REQUIRE(t.value(metrics::entropy) == 0.5);
}

TEST_CASE("histogram buckets include their upper end, and text makes them cumulative") {
  metric_set t("trainer");
  t.observe(metrics::trained_staleness, 0, 10);
  t.observe(metrics::trained_staleness, 2, 5);
  t.observe(metrics::trained_staleness, 99);
  const auto s = snapshot_of(t, "trainer");
  const auto at = std::find_if(s.histograms.begin(), s.histograms.end(), [](auto& h) {
    return h.name == "millrace_trained_token_staleness_versions";
  });
  REQUIRE(at != s.histograms.end());
  REQUIRE(at->counts[0] == 10);
  REQUIRE(at->counts[1] == 0);
  REQUIRE(at->counts[2] == 5);
  REQUIRE(at->counts.back() == 1);
  REQUIRE(at->count() == 16);
  REQUIRE(at->sum == 109);
  const auto text = prometheus_text(std::vector{s});
  const std::string base = "millrace_trained_token_staleness_versions";
  const std::string who = "{actor=\"trainer\",node=\"local\"";
  REQUIRE(text.find(base + "_bucket" + who + ",le=\"2\"} 15\n") != std::string::npos);
  REQUIRE(text.find(base + "_bucket" + who + ",le=\"+Inf\"} 16\n") != std::string::npos);
  REQUIRE(text.find(base + "_sum" + who + "} 109\n") != std::string::npos);
}

TEST_CASE("counting from many threads loses nothing") {
  metric_set g("generator");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 20000; ++i) {
        g.add(metrics::tokens_generated);
        g.observe(metrics::answer_length, 3);
      }
    });
  for (int i = 0; i < 100; ++i)
    (void) snapshot_of(g, "g");
  for (auto& t : threads)
    t.join();
  REQUIRE(g.value(metrics::tokens_generated) == 80000);
  REQUIRE(snapshot_of(g, "g").histograms[0].count() == 80000);
}

TEST_CASE("JSON has metrics by name and label; what is not finite is null there, and named here") {
  metric_set t("trainer");
  t.set(metrics::loss, std::nan(""));
  auto s = snapshot_of(t, "trainer");
  s.waits_for = "replay";
  const auto json = to_json(s);
  REQUIRE(json["waits_for"] == "replay");
  REQUIRE(json["gauges"]["millrace_loss"].dump() == "null");
  REQUIRE(json["histograms"]["millrace_step_stage_seconds"]["total"]["count"] == 0);
  const auto text = prometheus_text(std::vector{s});
  REQUIRE(text.find("millrace_loss{actor=\"trainer\",node=\"local\"} NaN\n") != std::string::npos);
  REQUIRE(text.find("millrace_waiting{actor=\"trainer\",node=\"local\",kind=\"trainer\"} 1\n")
          != std::string::npos);
}

TEST_CASE("the process knows its size") {
  metric_set p("process");
  update_process_metrics(p, 3, 2);
  update_process_metrics(p, 3, 2);
  REQUIRE(p.value(metrics::resident_memory) > 1e6);
  REQUIRE(p.value(metrics::peak_memory) >= p.value(metrics::resident_memory));
  REQUIRE(p.value(metrics::cpu_time) > 0);
  REQUIRE(p.value(metrics::cpu_time) < 100);
  REQUIRE(p.value(metrics::threads) >= 1);
  REQUIRE(p.value(metrics::open_files) >= 3);
  REQUIRE(p.value(metrics::seconds_since_progress) == 2);
}
