#include "bench/benchmarks.hpp"

#include "bench/instruments.hpp"
#include "bench/stale_task.hpp"
#include "policy_loss/token_logprobs.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <map>

namespace millrace::bench {

namespace {

// -- log-probs from hidden states ------------------------------------------------------------------

struct log_prob_run {
  double seconds = 0, peak_bytes = 0; ///< above what was there before
  at::Tensor hidden_gradient, head_gradient;
};

/// Forward and backward of Σ log-prob by one of two routes.
log_prob_run log_probs(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& targets,
                       bool chunked) {
  auto h = hidden.detach().requires_grad_();
  auto w = head.detach().requires_grad_();
  log_prob_run out;
  peak_memory peak;
  out.seconds = seconds([&] {
    at::Tensor logp;
    if (chunked)
      logp = policy_loss::token_logprobs(h, w, targets).logp;
    else
      logp = at::log_softmax(at::matmul(h, w.t()), 1).gather(1, targets.unsqueeze(1)).squeeze(1);
    logp.sum().backward();
  });
  out.peak_bytes = peak.bytes();
  out.hidden_gradient = h.grad();
  out.head_gradient = w.grad();
  return out;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

void compare_log_probs(const options& how, measurements& out) {
  const std::int64_t tokens = how.quick ? 1024 : 8192, vocabulary = how.quick ? 16384 : 151936;
  const std::int64_t width = 256;
  at::set_num_threads(2);
  at::manual_seed(1);
  auto hidden = at::randn({tokens, width});
  auto head = at::randn({vocabulary, width}) * 0.05;
  auto targets = at::randint(vocabulary, {tokens}, at::kLong);
  std::vector<double> times[2], peaks[2];
  log_prob_run last[2];
  for (int round = 0; round < (how.quick ? 1 : 3); ++round)
    for (int chunked : {1, 0}) {
      note("log-probs of " + std::to_string(tokens) + " × " + std::to_string(vocabulary)
           + (chunked ? ", chunked" : ", naive"));
      last[chunked] = log_probs(hidden, head, targets, chunked == 1);
      note("  " + std::to_string(last[chunked].seconds) + " s, "
           + std::to_string(last[chunked].peak_bytes / 1e6) + " MB");
      times[chunked].push_back(last[chunked].seconds);
      peaks[chunked].push_back(last[chunked].peak_bytes);
    }
  auto against = "naive (log_softmax of all logits)";
  out.push_back({"chunked log-probs, forward + backward, time", median(times[1]), "s", against,
                 median(times[1]) / median(times[0]), 1.3, true});
  out.push_back({"chunked log-probs, peak memory", median(peaks[1]) / 1e6, "MB", against,
                 median(peaks[1]) / median(peaks[0]), 0.15, true});
  auto difference = std::max(largest_difference(last[1].hidden_gradient, last[0].hidden_gradient),
                             largest_difference(last[1].head_gradient, last[0].head_gradient));
  out.push_back({"chunked log-probs, gradient difference (relative)", difference, "", "", {}, 1e-5,
                 true});
}

// -- what corrections are worth --------------------------------------------------------------------

void compare_corrections(const options& how, measurements& out) {
  auto use = [](std::string loss, nlohmann::json params, old_logits_source old) {
    return [=](settings& s) {
      s.algorithm.loss = {loss, params};
      s.algorithm.old_logits = old;
    };
  };
  const std::vector<contender> contenders{
    {"η = 0, fp32, decoupled PPO",
     [](settings& s) {
       s.rollout.eta = 0;
       s.generator.dtype = weight_dtype::fp32;
     }},
    {"decoupled PPO + mask",
     use("mis_decoupled", {{"eps", 0.2}, {"disc_low", 0.2}, {"disc_high", 5.0}},
         old_logits_source::recompute)},
    {"AIPO", use("aipo", {{"rho", 5.0}}, old_logits_source::behaviour)},
    {"EWMA",
     [&](settings& s) {
       use("mis_decoupled", {{"eps", 0.2}, {"disc_low", 0.2}, {"disc_high", 5.0}},
           old_logits_source::ewma)(s);
       s.algorithm.ewma.window = 2;
     }},
    {"uncorrected PPO", use("ppo_clip", {{"eps", 0.2}}, old_logits_source::recompute)},
  };
  std::map<std::string, std::vector<double>> found;
  for (std::uint64_t seed = 1; seed <= (how.quick ? 1u : 3u); ++seed)
    for (const auto& c : contenders) {
      note("seed " + std::to_string(seed) + ", " + c.name);
      auto s = stale_task(seed, how);
      c.choose(s);
      found[c.name].push_back(train_run(s).accuracy);
      note("  held-out accuracy " + std::to_string(found[c.name].back()));
    }
  auto mean = [&](const std::string& name) {
    double sum = 0;
    for (auto x : found[name])
      sum += x;
    return sum / static_cast<double>(found[name].size());
  };
  auto reference = mean(contenders[0].name);
  for (const auto& c : contenders) {
    measurement m{"held-out accuracy, η = 8, int8: " + c.name, 100 * mean(c.name), "%"};
    if (&c == &contenders[0])
      m.name = "held-out accuracy, " + c.name;
    else if (&c == &contenders.back())
      m.bar = 100 * reference - 2, m.bar_is_upper = true; // measurably behind
    else
      m.bar = 100 * reference - 2;
    out.push_back(m);
  }
}

} // namespace

measurements loss(const options& how) {
  measurements out;
  compare_log_probs(how, out);
  compare_corrections(how, out);
  return out;
}

} // namespace millrace::bench
