#pragma once

#include "runtime/messages.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::generation {

/// A token and what it was drawn from.
struct sampled_token {
  std::int32_t token = -1;
  float logp = 0;     ///< log-prob under the distribution really sampled from; 0 where greedy
  float raw_logp = 0; ///< log-prob under the model's own softmax, at temperature 1, nothing cut
};

/// A token that could have been sampled, with its log-prob under the distribution sampled from.
struct likely_token {
  std::int32_t token = -1;
  float logp = 0;
};

/// Draws tokens from logits. The order of operations: forbidden tokens removed, temperature, min-p,
/// top-k, top-p (the last two on what is left, renormalised); ties go to the lower id.
/// A pure function of its arguments; the object only keeps scratch memory.
class sampler {
public:
  /// `draw` in [0, 1) decides. `forbidden` tokens get no probability (end-of-sequence tokens before
  /// min_tokens). Throws user_error when a logit is not finite, or nothing is left to sample.
  /// Forbidden tokens' logits are overwritten.
  sampled_token sample(std::span<float> logits, const sampling_params& params, double draw,
                       std::span<const std::int32_t> forbidden = {});

  /// The `n` likeliest tokens of the distribution that the last sample() drew from, likeliest
  /// first, ties by id; fewer where fewer could be sampled (one where greedy). `logits` are as that
  /// call left them, `params` and `drawn` its own.
  [[nodiscard]] std::vector<likely_token> likeliest(std::span<const float> logits,
                                                    const sampling_params& params,
                                                    const sampled_token& drawn,
                                                    std::size_t n) const;

private:
  struct candidate {
    float logit;
    std::int32_t token;
  };

  /// Fills weights_ with exp((logit − largest) · scale) and sums_; returns the whole sum.
  double exponentials(std::span<const float> logits, float largest, float scale);
  sampled_token sample_all(std::span<const float> logits, float temperature, float largest,
                           double draw);
  sampled_token sample_cut(std::span<const float> logits, const sampling_params& params,
                           float largest, double draw);
  [[nodiscard]] static bool cuts(const sampling_params& params) {
    return params.top_k > 0 || params.top_p < 1.0F || params.min_p > 0.0F;
  }

  std::vector<float> weights_; ///< after sample_cut(): of the candidates that are left
  std::vector<double> sums_;
  std::vector<candidate> candidates_; ///< after sample_cut(): likeliest first
};

} // namespace millrace::generation
