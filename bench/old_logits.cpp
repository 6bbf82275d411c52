// What exact old log-probs cost, and what they are worth: "Missing Old Logits in Asynchronous Agentic RL"
// (arXiv 2605.12070) in small, on the quickstart's task with generators of another precision and η = 8.

#include "bench/benchmarks.hpp"

#include "bench/instruments.hpp"
#include "bench/stale_task.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>

namespace millrace::bench {

namespace {

/// Of the training steps, the first η + 2 left out: until then there are fewer versions than usual.
double mean_of(const finished_run& r, const std::string& key) {
  double sum = 0, n = 0;
  for (const auto& line : r.lines)
    if (line.contains("old_logits_s") && line.contains(key) && ++n > 10)
      sum += line[key].get<double>();
  return n > 10 ? sum / (n - 10) : 0;
}

double largest_of(const finished_run& r, const std::string& key) {
  double largest = 0;
  for (const auto& line : r.lines)
    largest = std::max(largest, line.value(key, 0.0));
  return largest;
}

// -- what they cost --------------------------------------------------------------------------------

void compare_costs(const options& how, measurements& out) {
  const double weights = 4.0 * 100'000; // about one version of this model, bytes
  auto old = [](old_logits_source source) {
    return [=](settings& s) { s.algorithm.old_logits = source; };
  };
  const std::vector<contender> contenders{
    {"recompute", old(old_logits_source::recompute)},
    {"ewma", old(old_logits_source::ewma)},
    {"snapshot", old(old_logits_source::snapshot)},
    {"snapshot, mostly on disk",
     [=](settings& s) {
       s.algorithm.old_logits = old_logits_source::snapshot;
       s.algorithm.old_logits_fallback = old_logits_fallback::recompute;
       s.algorithm.snapshot.memory_bytes = static_cast<std::int64_t>(3 * weights);
       s.algorithm.snapshot.disk_bytes = 1 << 30;
     }},
    {"interrupt", old(old_logits_source::interrupt)},
    {"dedicated", old(old_logits_source::dedicated)},
  };
  std::map<std::string, double> step;
  for (const auto& c : contenders) {
    auto s = stale_task(1, how);
    s.run.steps = how.quick ? 14 : 60;
    s.warmup.steps = 50;
    s.eval.prompts = 10;
    s.algorithm.loss = {"mis_decoupled", {{"eps", 0.2}, {"disc_low", 0.2}, {"disc_high", 5.0}}};
    c.choose(s);
    note("cost of " + c.name);
    auto r = train_run(s);
    auto path = mean_of(r, "old_logits_s") + mean_of(r, "old_logits_waited_s");
    step[c.name] = mean_of(r, "step_s");
    auto prefix = "old log-probs, " + c.name + ": ";
    out.push_back({prefix + "on the step's path", 1e3 * path, "ms a step"});
    out.push_back({prefix + "the whole step", 1e3 * step[c.name], "ms", "recompute",
                   step[c.name] / step["recompute"]});
    out.push_back({prefix + "forwards", mean_of(r, "old_logits_forwards"), "a step"});
    out.push_back({prefix + "kept in memory", largest_of(r, "old_logits_memory_bytes") / 1e6, "MB"});
    if (c.name == "snapshot, mostly on disk") {
      out.push_back({prefix + "kept on disk", largest_of(r, "old_logits_disk_bytes") / 1e6, "MB"});
      out.push_back({prefix + "memory against its budget",
                     largest_of(r, "old_logits_memory_bytes") / 1e6, "MB", "budget",
                     largest_of(r, "old_logits_memory_bytes") / (3 * weights), 1.0, true});
    }
    auto exact = mean_of(r, "old_logits_share_snapshot") + mean_of(r, "old_logits_share_interrupt")
                 + mean_of(r, "old_logits_share_dedicated");
    if (exact > 0)
      out.push_back({prefix + "tokens served exactly", 100 * exact, "%"});
    if (c.name == "dedicated") {
      out.push_back({prefix + "computed beside the step", 1e3 * mean_of(r, "old_logits_hidden_s"),
                     "ms a step"});
      out.push_back({prefix + "tokens computed before their batch came",
                     100 * mean_of(r, "old_logits_share_dedicated"), "%"});
      out.push_back({prefix + "hidden share", 100 * mean_of(r, "old_logits_hidden_share"), "%", "",
                     {}, 80.0});
    }
  }
}

// -- what they are worth ---------------------------------------------------------------------------

std::string curve(const finished_run& r) {
  std::string text;
  for (const auto& line : r.lines)
    if (line.contains("eval_accuracy")) {
      char buffer[32];
      std::snprintf(buffer, sizeof buffer, " %.3f", line["eval_accuracy"].get<double>());
      text += buffer;
    }
  return text;
}

void compare_worth(const options& how, measurements& out) {
  auto use = [](old_logits_source source, double window = 2, double reset = 0) {
    return [=](settings& s) {
      s.algorithm.loss = {"mis_decoupled", {{"eps", 0.2}, {"disc_low", 0.2}, {"disc_high", 5.0}}};
      s.algorithm.old_logits = source;
      s.algorithm.ewma = {.window = window, .reset_below = reset,
                          .reset_rule = ewma_reset_rule::mask_and_clip};
    };
  };
  const std::vector<contender> contenders{
    {"async prox (recompute)", use(old_logits_source::recompute)},
    {"linear prox", use(old_logits_source::arithmetic)},
    {"EWMA", use(old_logits_source::ewma)},
    {"EWMA with reset", use(old_logits_source::ewma, 2, 0.95)},
    {"snapshot", use(old_logits_source::snapshot)},
    // For A < 0 nothing bounds π/π_old from above but this (1912.09729).
    {"snapshot, dual clip 3",
     [&](settings& s) {
       use(old_logits_source::snapshot)(s);
       s.algorithm.loss.params["dual_clip_c"] = 3;
     }},
  };
  const std::uint64_t seeds = how.quick ? 1 : 3;
  std::map<std::string, std::vector<double>> found;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed)
    for (const auto& c : contenders) {
      auto s = stale_task(seed, how);
      s.run.eval_every = how.quick ? 0 : 100;
      c.choose(s);
      auto r = train_run(s);
      found[c.name].push_back(r.accuracy);
      note("seed " + std::to_string(seed) + ", " + c.name + ": held-out accuracy" + curve(r)
           + "; clipped " + std::to_string(mean_of(r, "clip_fraction_positive")) + ", masked "
           + std::to_string(mean_of(r, "mask_fraction")) + ", resets "
           + std::to_string(mean_of(r, "ewma_reset") * s.run.steps));
    }
  for (const auto& c : contenders) {
    double mean = 0, spread = 0;
    auto n = static_cast<double>(found[c.name].size());
    for (auto x : found[c.name])
      mean += x / n;
    for (auto x : found[c.name])
      spread += (x - mean) * (x - mean) / n;
    out.push_back({"held-out accuracy, η = 8, int8, decoupled with " + c.name, 100 * mean, "%"});
    out.push_back({"  standard deviation over seeds", 100 * std::sqrt(spread), "%"});
  }
}

} // namespace

measurements old_logits(const options& how) {
  measurements out;
  compare_costs(how, out);
  compare_worth(how, out);
  return out;
}

} // namespace millrace::bench
