#include "rollout/sampler.hpp"

#include "runtime/error.hpp"
#include "runtime/model/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace millrace::generation {
namespace {

constexpr float impossible = -std::numeric_limits<float>::infinity();

/// Of a probability that a float still holds: nothing below it is ever drawn.
constexpr double smallest_logp = -103.9;

bool before(float logit_a, std::int32_t token_a, float logit_b, std::int32_t token_b) {
  return logit_a > logit_b || (logit_a == logit_b && token_a < token_b);
}

/// The first index at which the running sum of weights exceeds `target`. Rounding may leave the
/// target just beyond the end: then the last index of positive weight.
std::size_t pick(std::span<const float> weights, double target) {
  double sum = 0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0)
      continue;
    sum += static_cast<double>(weights[i]);
    last = i;
    if (sum > target)
      break;
  }
  return last;
}

/// The same by the sums over each 1,024 weights, for whole vocabularies.
std::size_t pick(std::span<const float> weights, std::span<const double> sums, double target) {
  std::size_t part = 0, last = 0;
  for (; part < sums.size(); ++part) {
    if (sums[part] <= 0)
      continue;
    last = part;
    if (sums[part] > target)
      break;
    target -= sums[part];
  }
  const auto begin = last * model::sum_width;
  return begin + pick(weights.subspan(begin, std::min<std::size_t>(model::sum_width,
                                                                   weights.size() - begin)),
                      part < sums.size() ? target : std::numeric_limits<double>::max());
}

} // namespace

sampled_token sampler::sample(std::span<float> logits, const sampling_params& params, double draw,
                              std::span<const std::int32_t> forbidden) {
  const auto n = static_cast<std::int64_t>(logits.size());
  auto largest = model::kernels().maximum(logits.data(), n);
  if (!std::isfinite(largest))
    throw user_error("the model's logits are not finite: its weights have diverged or are damaged");
  const bool plain = params.temperature == 1.0F && params.top_k <= 0 && params.top_p >= 1.0F
                     && params.min_p <= 0.0F && forbidden.empty();
  if (plain)
    return sample_all(logits, 1.0F, largest, draw);
  const double raw = static_cast<double>(largest) + std::log(exponentials(logits, largest, 1.0F));
  const auto raw_logp = [&](std::int32_t token, float logit) {
    return token >= 0 ? static_cast<float>(static_cast<double>(logit) - raw) : 0.0F;
  };
  if (!forbidden.empty()) {
    for (const auto t : forbidden)
      if (t >= 0 && t < n)
        logits[static_cast<std::size_t>(t)] = impossible;
    largest = *std::max_element(logits.begin(), logits.end());
    if (largest == impossible)
      throw user_error("no token is left to sample: every one is an end-of-sequence token and "
                       "min_tokens is not reached");
  }
  sampled_token result;
  if (params.temperature <= 0) {
    const auto at = std::max_element(logits.begin(), logits.end());
    result.token = static_cast<std::int32_t>(at - logits.begin());
    result.raw_logp = raw_logp(result.token, *at);
    return result;
  }
  result = cuts(params) ? sample_cut(logits, params, largest, draw)
                        : sample_all(logits, params.temperature, largest, draw);
  result.raw_logp = raw_logp(result.token, logits[static_cast<std::size_t>(result.token)]);
  return result;
}

std::vector<likely_token> sampler::likeliest(std::span<const float> logits,
                                             const sampling_params& params,
                                             const sampled_token& drawn, std::size_t n) const {
  if (params.temperature <= 0)
    return n > 0 ? std::vector{likely_token{drawn.token, drawn.logp}} : std::vector<likely_token>();
  std::vector<candidate> best;
  if (cuts(params)) {
    best.assign(candidates_.begin(),
                candidates_.begin()
                  + static_cast<std::ptrdiff_t>(std::min(n, weights_.size())));
  } else {
    for (std::size_t i = 0; i < logits.size() && n > 0; ++i) {
      const candidate c{logits[i], static_cast<std::int32_t>(i)};
      if (c.logit == impossible || (best.size() == n && !(c.logit > best.back().logit)))
        continue;
      if (best.size() == n)
        best.pop_back();
      best.insert(std::find_if(best.begin(), best.end(),
                               [&](const candidate& b) { return c.logit > b.logit; }), c);
    }
  }
  // Relative to the drawn token, whose log-prob it then has to the bit.
  const double scale = 1.0 / static_cast<double>(params.temperature);
  const double reference = logits[static_cast<std::size_t>(drawn.token)];
  std::vector<likely_token> out;
  for (const auto& b : best) {
    const auto logp = static_cast<double>(drawn.logp)
                      + (static_cast<double>(b.logit) - reference) * scale;
    if (logp > smallest_logp)
      out.push_back({b.token, std::min(0.0F, static_cast<float>(logp))});
  }
  return out;
}

double sampler::exponentials(std::span<const float> logits, float largest, float scale) {
  weights_.resize(logits.size());
  sums_.resize((logits.size() + model::sum_width - 1) / model::sum_width);
  model::kernels().exponentials(logits.data(), weights_.data(), sums_.data(),
                                static_cast<std::int64_t>(logits.size()), largest, scale);
  return std::accumulate(sums_.begin(), sums_.end(), 0.0);
}

sampled_token sampler::sample_all(std::span<const float> logits, float temperature, float largest,
                                  double draw) {
  const float scale = 1.0F / temperature;
  const double total = exponentials(logits, largest, scale);
  const auto at = pick(weights_, sums_, draw * total);
  const double z = static_cast<double>((logits[at] - largest) * scale);
  const auto logp = static_cast<float>(z - std::log(total));
  return {static_cast<std::int32_t>(at), logp, logp};
}

sampled_token sampler::sample_cut(std::span<const float> logits, const sampling_params& params,
                                  float largest, double draw) {
  const float scale = 1.0F / params.temperature;
  // p ≥ min_p · p_max is a bound on the logit; top-p needs it too, to keep the sort short.
  const float least = params.min_p > 0 ? largest + params.temperature * std::log(params.min_p)
                                       : std::numeric_limits<float>::lowest();
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (logits[i] >= least || logits[i] == largest)
      candidates_.push_back({logits[i], static_cast<std::int32_t>(i)});
  const auto order = [](const candidate& a, const candidate& b) {
    return before(a.logit, a.token, b.logit, b.token);
  };
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + params.top_k - 1,
                     candidates_.end(), order);
    candidates_.resize(static_cast<std::size_t>(params.top_k));
  }
  std::sort(candidates_.begin(), candidates_.end(), order);
  weights_.resize(candidates_.size());
  double total = 0;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    weights_[i] = std::exp((candidates_[i].logit - largest) * scale);
    total += static_cast<double>(weights_[i]);
  }
  if (params.top_p < 1.0F) {
    // The fewest likeliest tokens whose probabilities reach top_p; always at least one.
    double kept = 0;
    std::size_t count = 0;
    while (count < weights_.size() && (count == 0 || kept < double{params.top_p} * total))
      kept += static_cast<double>(weights_[count++]);
    weights_.resize(count);
    total = kept;
  }
  const auto at = pick(weights_, draw * total);
  const double z = static_cast<double>((candidates_[at].logit - largest) * scale);
  return {candidates_[at].token, static_cast<float>(z - std::log(total)), 0};
}

} // namespace millrace::generation
