#include "trainer/policy.hpp"

#include "bench/benchmarks.hpp"
#include "bench/instruments.hpp"
#include "runtime/model/tensor_pool.hpp"
#include "runtime/random.hpp"
#include "runtime/scratch_folder.hpp"
#include "trainer/memory_estimate.hpp"
#include "trainer/parallel.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

namespace millrace::bench {

namespace {

/// 8 answers a prompt. A prompt has 24 tokens, an answer from 8 to 400: most are short.
std::vector<scored_group> long_tailed(int rollouts, std::uint64_t seed, int vocabulary,
                                      int longest = 400) {
  random_stream random{seed, stream_of("bench/trainer")};
  std::vector<scored_group> groups(static_cast<std::size_t>(rollouts / 8));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    groups[g].group = static_cast<std::int64_t>(g);
    std::vector<std::int32_t> prompt(24);
    for (auto& t : prompt)
      t = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocabulary)));
    for (int i = 0; i < 8; ++i) {
      rollout r;
      r.id = {static_cast<std::int64_t>(g), i};
      r.tokens = prompt;
      r.prompt_length = 24;
      auto u = static_cast<double>(random.below(1000)) / 1000;
      auto length = 8 + static_cast<int>(std::pow(u, 4) * (longest - 8));
      for (int t = 0; t < length; ++t)
        r.tokens.push_back(static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocabulary))));
      r.versions.assign(r.tokens.size(), 0);
      std::fill_n(r.versions.begin(), 24, -1);
      r.behaviour_logp.assign(r.tokens.size(), -7.6F);
      std::fill_n(r.behaviour_logp.begin(), 24, 0.0F);
      r.reward = static_cast<float>(i % 2);
      groups[g].rollouts.push_back(std::move(r));
    }
  }
  return groups;
}

/// As trainers pad: each run of `count` rollouts to its longest, with tokens that are read and never
/// trained on.
std::vector<scored_group> padded(std::vector<scored_group> groups, std::size_t count) {
  std::vector<rollout*> all;
  for (auto& g : groups)
    for (auto& r : g.rollouts)
      all.push_back(&r);
  for (std::size_t i = 0; i < all.size(); i += count) {
    std::size_t longest = 0;
    for (auto j = i; j < std::min(i + count, all.size()); ++j)
      longest = std::max(longest, all[j]->tokens.size());
    for (auto j = i; j < std::min(i + count, all.size()); ++j) {
      all[j]->tokens.resize(longest, 0);
      all[j]->versions.resize(longest, -1);
      all[j]->behaviour_logp.resize(longest, 0);
    }
  }
  return groups;
}

settings small_model() {
  settings s;
  s.rollout.eta = 1000;
  s.model.architecture = {.layers = 4, .hidden = 256, .heads = 4, .kv_heads = 2,
                          .intermediate = 704, .max_positions = 512};
  s.tokenizer.alphabet = "0123456789";
  s.trainer.minibatches = 1;
  s.trainer.micro_batch_tokens = 4096;
  s.trainer.share_prompts = false;
  s.algorithm.loss.name = "ppo_clip";
  s.algorithm.old_logits = old_logits_source::recompute;
  return s;
}

/// Seconds of a step from the policy's own version, whatever the batch says.
double step(trainer::policy& p, std::vector<scored_group> groups,
            trainer::step_statistics* stats = nullptr) {
  auto v = p.current();
  for (auto& g : groups)
    for (auto& r : g.rollouts)
      for (auto& x : r.versions)
        x = x < 0 ? x : v.value;
  trainer::step_statistics found;
  auto took = seconds([&] { found = p.step(v, groups); });
  if (stats)
    *stats = std::move(found);
  return took;
}

// -- micro-batches -----------------------------------------------------------------------------------

void compare_packing(const options& how, measurements& out) {
  auto rollouts = how.quick ? 32 : 64;
  auto s = small_model();
  auto groups = long_tailed(rollouts, 1, 10);
  // Fixed: as many rollouts at a time as the budget holds of the longest.
  const std::size_t fixed = 4096 / 424;
  auto fixed_groups = padded(groups, fixed);
  auto dynamic = trainer::policy::create(s);
  s.trainer.micro_batch_tokens = static_cast<std::int32_t>(4096);
  auto standard = trainer::policy::create(s);
  s.trainer.share_prompts = true;
  auto shared = trainer::policy::create(s);
  std::vector<double> d, f, p;
  trainer::step_statistics stats;
  double tokens = 0, read_dynamic = 0, read_fixed = 0, read_shared = 0;
  for (int round = 0; round < (how.quick ? 2 : 6); ++round) {
    auto keep = round > 0;
    auto a = step(dynamic, groups, &stats);
    read_dynamic = static_cast<double>(stats.processed_tokens);
    tokens = static_cast<double>(stats.trained_tokens);
    auto b = step(standard, fixed_groups, &stats);
    read_fixed = static_cast<double>(stats.processed_tokens);
    auto c = step(shared, groups, &stats);
    read_shared = static_cast<double>(stats.processed_tokens);
    note("dynamic " + std::to_string(a) + " s, fixed " + std::to_string(b) + " s, shared prompts "
         + std::to_string(c) + " s");
    if (keep)
      d.push_back(a), f.push_back(b), p.push_back(c);
  }
  auto against = "fixed number of rollouts, padded";
  out.push_back({"trained, dynamic micro-batches", tokens / median(d), "tokens/s", against,
                 median(f) / median(d), 1.3});
  out.push_back({"tokens read, dynamic micro-batches", read_dynamic, "tokens", against,
                 read_dynamic / read_fixed});
  out.push_back({"trained, shared prompts too", tokens / median(p), "tokens/s", "dynamic",
                 median(d) / median(p)});
  out.push_back({"tokens read, shared prompts too", read_shared, "tokens", "dynamic",
                 read_shared / read_dynamic});
}

// -- ranks --------------------------------------------------------------------------------------------

std::vector<std::string> rank_command() {
  return {"/bin/sh", "-c",
          "MILLRACE_BENCH_RANK=$2 MILLRACE_BENCH_STORE=$4 exec \"$0\" trainer >/dev/null",
          std::filesystem::read_symlink("/proc/self/exe").string()};
}

struct ranks_run {
  double loss = 0, norm = 0, seconds = 0, waited = 0, tokens = 0;
};

ranks_run with_ranks(int dp, int tp, bool zero1, bool sequence, const options& how) {
  auto s = small_model();
  s.trainer.parallel = {.dp = dp, .tp = tp, .zero1 = zero1, .sequence = sequence, .timeout_s = 300};
  auto p = trainer::policy::create(s, nullptr, trainer::start_ranks(s, rank_command()));
  auto groups = long_tailed(how.quick ? 16 : 32, 2, 10);
  ranks_run r;
  std::vector<double> times, waits;
  for (int round = 0; round < (how.quick ? 2 : 4); ++round) {
    trainer::step_statistics stats;
    auto took = step(p, groups, &stats);
    if (round == 0) {
      r.loss = stats.loss;
      r.norm = stats.grad_norm;
      continue;
    }
    times.push_back(took);
    waits.push_back(stats.seconds.rank_wait / took);
    r.tokens = static_cast<double>(stats.trained_tokens);
  }
  r.seconds = median(times);
  r.waited = median(waits);
  return r;
}

void compare_ranks(const options& how, measurements& out) {
  note("one process");
  auto alone = with_ranks(1, 1, false, false, how);
  struct grid {
    const char* name;
    int dp, tp;
    bool zero1, sequence = false;
  };
  for (const auto& g : {grid{"dp 2", 2, 1, false}, grid{"dp 2, ZeRO-1", 2, 1, true},
                        grid{"tp 2", 1, 2, false}, grid{"tp 2, tokens shared", 1, 2, false, true},
                        grid{"dp 2 x tp 2", 2, 2, false}}) {
    note(g.name);
    auto r = with_ranks(g.dp, g.tp, g.zero1, g.sequence, how);
    auto off = std::abs(r.norm - alone.norm) / alone.norm;
    std::string name = g.name;
    out.push_back({name + ": gradient's norm off one process's (relative)", off, "", "", {}, 1e-4,
                   true});
    out.push_back({name + ": share of the step waiting for ranks", 100 * r.waited, "%"});
    out.push_back({name + ": trained", r.tokens / r.seconds, "tokens/s", "one process",
                   alone.seconds / r.seconds});
  }
}

// -- bf16 ---------------------------------------------------------------------------------------------

/// Counting, so that there is something to learn: log-probs of a policy that knows nothing differ little.
std::vector<trainer::demonstration> counting(int n, std::uint64_t seed) {
  random_stream random{seed, stream_of("bench/counting")};
  std::vector<trainer::demonstration> all;
  for (int i = 0; i < n; ++i) {
    trainer::demonstration d{{}, 2};
    auto step = 1 + static_cast<std::int32_t>(random.below(3));
    for (auto t = static_cast<std::int32_t>(random.below(10)); d.tokens.size() < 40; t += step)
      d.tokens.push_back(t % 10);
    all.push_back(std::move(d));
  }
  return all;
}

void compare_compute(const options& how, measurements& out) {
  scratch_folder folder("millrace-bench");
  auto s = small_model();
  s.algorithm.old_logits = old_logits_source::snapshot; // tells each token's log-prob
  {
    auto p = trainer::policy::create(s);
    for (int i = 0; i < (how.quick ? 5 : 40); ++i)
      p.warm_up(counting(32, static_cast<std::uint64_t>(i)));
    p.save(folder.path());
  }
  auto learnt = counting(64, 1000);
  std::vector<scored_group> groups;
  for (std::size_t i = 0; i < learnt.size(); ++i) {
    auto g = static_cast<std::int64_t>(i / 8);
    if (i % 8 == 0)
      groups.push_back({g, {}, {}});
    rollout r;
    r.id = {g, static_cast<std::int32_t>(i % 8)};
    r.tokens = learnt[i].tokens;
    r.prompt_length = 2;
    r.versions.assign(r.tokens.size(), 0);
    r.versions[0] = r.versions[1] = -1;
    r.behaviour_logp.assign(r.tokens.size(), -1);
    r.reward = static_cast<float>(i % 2);
    groups.back().rollouts.push_back(std::move(r));
  }
  std::vector<float> logp;
  double wide = 0;
  for (auto compute : {compute_dtype::fp32, compute_dtype::bf16}) {
    s.trainer.compute = compute;
    auto p = trainer::policy::load(s, folder.path());
    trainer::step_statistics first, stats;
    step(p, groups, &first);
    auto timed = long_tailed(how.quick ? 32 : 64, 1, 10);
    std::vector<double> times;
    for (int round = 0; round < (how.quick ? 1 : 4); ++round)
      times.push_back(step(p, timed, &stats));
    auto rate = static_cast<double>(stats.trained_tokens) / median(times);
    if (compute == compute_dtype::fp32) {
      logp = first.old_logp;
      wide = rate;
      continue;
    }
    double largest = 0, sum = 0;
    for (std::size_t i = 0; i < logp.size(); ++i) {
      auto d = std::abs(static_cast<double>(logp[i]) - first.old_logp[i]);
      largest = std::max(largest, d);
      sum += d;
    }
    out.push_back({"bf16 layers: log-probs off fp32's, mean", sum / static_cast<double>(logp.size()),
                   ""});
    out.push_back({"bf16 layers: log-probs off fp32's, largest", largest, ""});
    out.push_back({"bf16 layers: trained", rate, "tokens/s", "fp32", rate / wide});
  }
}

// -- memory -------------------------------------------------------------------------------------------

void compare_memory(const options& how, measurements& out) {
  struct way {
    const char* name;
    bool again;
    compute_dtype compute;
  };
  for (const auto& w : {way{"activations kept", false, compute_dtype::fp32},
                        way{"activations computed again", true, compute_dtype::fp32},
                        way{"activations kept, bf16", false, compute_dtype::bf16}}) {
    auto s = small_model();
    s.trainer.activation_checkpointing = w.again;
    s.trainer.compute = w.compute;
    s.trainer.micro_batch_tokens = how.quick ? 2048 : 8192;
    model::trim_tensor_pool();
    peak_memory peak;
    auto p = trainer::policy::create(s);
    auto groups = long_tailed(how.quick ? 32 : 192, 3, 10);
    auto took = step(p, groups);
    auto measured = peak.bytes();
    double predicted = 0;
    for (const auto& i : trainer::trainer_memory(p.config(), s))
      if (i.what != "trainer: checkpoint") // none is written here
        predicted += static_cast<double>(i.bytes);
    std::string name = w.name;
    note(name + ": " + std::to_string(took) + " s");
    out.push_back({name + ": peak memory", measured / 1e6, "MB", "predicted", measured / predicted,
                   1.25, true});
    out.push_back({name + ": peak memory, from below", measured / 1e6, "MB", "predicted",
                   measured / predicted, 0.75});
  }
}

/// For bench/peers/trainer.sh: a line in, a round done, its seconds and tokens out.
void serve_rounds(const std::string& what) {
  auto request = nlohmann::json::parse(what);
  auto s = small_model();
  s.trainer.share_prompts = request.value("share_prompts", false);
  s.trainer.threads = request.value("threads", 1);
  auto p = trainer::policy::create(s);
  std::vector<scored_group> groups;
  for (const auto& g : request["groups"]) {
    auto& group = groups.emplace_back();
    group.group = static_cast<std::int64_t>(groups.size()) - 1;
    for (const auto& tokens : g) {
      rollout r;
      r.id = {group.group, static_cast<std::int32_t>(group.rollouts.size())};
      r.tokens = tokens.get<std::vector<std::int32_t>>();
      r.prompt_length = request["prompt"].get<std::int32_t>();
      r.versions.assign(r.tokens.size(), 0);
      std::fill_n(r.versions.begin(), r.prompt_length, -1);
      r.behaviour_logp.assign(r.tokens.size(), -2.5F);
      r.reward = static_cast<float>(r.id.sample % 2);
      group.rollouts.push_back(std::move(r));
    }
  }
  std::string line;
  while (std::getline(std::cin, line)) {
    trainer::step_statistics stats;
    auto took = step(p, groups, &stats);
    std::printf("%.6f %lld\n", took, static_cast<long long>(stats.trained_tokens));
    std::fflush(stdout);
  }
}

} // namespace

measurements train(const options& how) {
  measurements out;
  if (const auto* rank = std::getenv("MILLRACE_BENCH_RANK")) {
    trainer::follow_rank(std::atoi(rank), std::getenv("MILLRACE_BENCH_STORE"), 300);
    return out;
  }
  if (const auto* rounds = std::getenv("MILLRACE_BENCH_ROUNDS")) {
    std::ifstream in(rounds);
    serve_rounds({std::istreambuf_iterator<char>(in), {}});
    return out;
  }
  compare_packing(how, out);
  compare_ranks(how, out);
  compare_compute(how, out);
  compare_memory(how, out);
  return out;
}

} // namespace millrace::bench
