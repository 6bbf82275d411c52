// The trainer on CUDA devices: first that it computes what the CPU computes, then its tokens per second
// in fp32 and bf16, with the optimiser offloaded, and over NCCL ranks. Run by trainer.sh.

#include "runtime/error.hpp"
#include "runtime/model/tensor_pool.hpp"
#include "runtime/model/torch_device.hpp"
#include "runtime/random.hpp"
#include "trainer/parallel.hpp"
#include "trainer/policy.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

using namespace millrace;

namespace {

constexpr int vocabulary = 10;

/// 8 answers to a prompt of 64 tokens, of 16 to `longest` tokens, most of them short.
std::vector<scored_group> batch_of(int rollouts, int longest, version v, std::uint64_t seed) {
  random_stream random{seed, stream_of("bench/gpu/trainer")};
  const auto token = [&] { return static_cast<std::int32_t>(random.below(vocabulary)); };
  std::vector<scored_group> groups(static_cast<std::size_t>(rollouts / 8));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    groups[g].group = static_cast<std::int64_t>(g);
    std::vector<std::int32_t> prompt(64);
    std::generate(prompt.begin(), prompt.end(), token);
    for (int i = 0; i < 8; ++i) {
      rollout r;
      r.id = {static_cast<std::int64_t>(g), i};
      r.tokens = prompt;
      r.prompt_length = 64;
      const auto u = static_cast<double>(random.below(1000)) / 1000;
      for (int t = 0, n = 16 + static_cast<int>(std::pow(u, 3) * (longest - 16)); t < n; ++t)
        r.tokens.push_back(token());
      r.versions.assign(r.tokens.size(), v.value);
      std::fill_n(r.versions.begin(), 64, -1);
      r.behaviour_logp.assign(r.tokens.size(), -2.3F);
      std::fill_n(r.behaviour_logp.begin(), 64, 0.0F);
      r.reward = static_cast<float>(i % 2);
      groups[g].rollouts.push_back(std::move(r));
    }
  }
  return groups;
}

settings with(const architecture_settings& shape, std::int64_t tokens) {
  settings s;
  s.rollout.eta = 1000;
  s.model.architecture = shape;
  s.tokenizer.alphabet = "0123456789";
  s.trainer.minibatches = 2;
  s.trainer.micro_batch_tokens = tokens;
  s.trainer.threads = 8;
  s.algorithm.loss.name = "ppo_clip";
  s.algorithm.old_logits = old_logits_source::recompute;
  return s;
}

trainer::policy policy_with(const settings& s) {
  const auto millrace = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "millrace";
  return trainer::policy::create(s, nullptr,
                                 trainer::start_ranks(s, {millrace.string(), "trainer-rank"}));
}

// -- is it right? --------------------------------------------------------------------------------------

struct course {
  std::vector<float> parameters;
  double loss = 0, gradient = 0;
};

course three_steps(const settings& s) {
  auto p = policy_with(s);
  course c;
  for (int v = 0; v < 3; ++v) {
    const auto stats = p.step({v}, batch_of(32, 120, {v}, 1));
    c.loss = stats.loss;
    c.gradient = stats.grad_norm;
  }
  for (const auto& v : p.host_views()) {
    const auto* f = reinterpret_cast<const float*>(v.data);
    c.parameters.insert(c.parameters.end(), f, f + v.elements());
  }
  return c;
}

bool near(const char* name, const course& a, const course& b, double bar) {
  double apart = 0;
  for (std::size_t i = 0; i < a.parameters.size(); ++i)
    apart = std::max(apart, std::abs(double(a.parameters[i]) - double(b.parameters[i])));
  const bool right = a.parameters.size() == b.parameters.size() && apart < bar;
  std::printf("%-34s %s: parameters %.2e apart, loss %.6f and %.6f, gradient %.6f and %.6f\n", name,
              right ? "right" : "WRONG", apart, a.loss, b.loss, a.gradient, b.gradient);
  return right;
}

bool compare(int devices) {
  auto s = with({.layers = 2, .hidden = 128, .heads = 4, .kv_heads = 2, .intermediate = 352,
                 .max_positions = 512}, 2048);
  s.trainer.eps = 1e-4; // small differences of small gradients stay small
  const auto cpu = three_steps(s);
  s.trainer.device = compute_device::cuda;
  const auto cuda = three_steps(s);
  auto right = near("CUDA against CPU", cuda, cpu, 1e-3);
  s.trainer.offload_optimizer = true;
  right &= near("offloaded against CUDA", three_steps(s), cuda, 1e-4);
  s.trainer.offload_optimizer = false;
  struct ranks {
    const char* name;
    int dp, tp;
    bool zero1;
  };
  for (const auto& r : {ranks{"dp 2 against one", 2, 1, false}, ranks{"dp 2, ZeRO-1", 2, 1, true},
                        ranks{"tp 2", 1, 2, false}, ranks{"dp 2 × tp 2", 2, 2, true}}) {
    if (r.dp * r.tp > devices)
      continue;
    s.trainer.parallel = {.dp = r.dp, .tp = r.tp, .zero1 = r.zero1};
    right &= near(r.name, three_steps(s), cuda, 1e-3);
  }
  return right;
}

// -- how fast? -----------------------------------------------------------------------------------------

void time(const char* name, const settings& s) {
  auto p = policy_with(s);
  std::vector<double> rates;
  for (int v = 0; v < 6; ++v) {
    const auto groups = batch_of(256, 1000, {v}, static_cast<std::uint64_t>(v));
    const auto began = std::chrono::steady_clock::now();
    const auto stats = p.step({v}, groups);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    if (v > 0) // the first one loads kernels
      rates.push_back(static_cast<double>(stats.trained_tokens) / took.count());
  }
  std::sort(rates.begin(), rates.end());
  std::printf("%-34s %10.0f trained tokens/s\n", name, rates[rates.size() / 2]);
  std::fflush(stdout);
}

void measure(int devices) {
  auto s = with({.layers = 12, .hidden = 1024, .heads = 16, .kv_heads = 4, .intermediate = 2816,
                 .max_positions = 2048}, 16384);
  s.trainer.device = compute_device::cuda;
  time("fp32", s);
  s.trainer.compute = compute_dtype::bf16;
  time("bf16", s);
  s.trainer.activation_checkpointing = true;
  time("bf16, recomputed activations", s);
  s.trainer.activation_checkpointing = false;
  s.trainer.offload_optimizer = true;
  time("bf16, offloaded optimiser", s);
  s.trainer.offload_optimizer = false;
  for (int n = 2; n <= devices; n *= 2) {
    s.trainer.parallel = {.dp = n, .zero1 = true};
    time(("bf16, dp " + std::to_string(n) + ", ZeRO-1").c_str(), s);
    if (n <= 4) {
      s.trainer.parallel = {.tp = n};
      time(("bf16, tp " + std::to_string(n)).c_str(), s);
    }
  }
}

} // namespace

int main() {
  try {
    model::pool_tensor_memory();
    const auto devices = model::cuda_devices("bench/gpu/trainer");
    if (devices == 0)
      throw user_error("bench/gpu/trainer: this process sees no CUDA device");
    std::printf("%d CUDA devices\n", devices);
    const auto right = compare(devices);
    measure(devices);
    std::printf("%s\n", right ? "all right" : "FAILED");
    return right ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
