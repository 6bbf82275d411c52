#pragma once

#include "runtime/ids.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::trainer {

/// Where one token's old log-prob came from.
enum class old_logit_route : std::uint8_t {
  recompute,  ///< θ at the start of the step
  snapshot,   ///< the version that sampled it, computed in this step
  dedicated,  ///< the same, computed by the old-logit actor beforehand
  interrupt,  ///< the same, computed while that version was still resident
  ewma,       ///< the average of the parameters
  loglinear,  ///< interpolated between μ and θ
  arithmetic,
  behaviour   ///< μ itself
};
constexpr std::array<std::string_view, 8> names(old_logit_route) {
  return {"recompute", "snapshot",  "dedicated",  "interrupt",
          "ewma",      "loglinear", "arithmetic", "behaviour"};
}

/// What old log-probs took, beside the time on the step's path, which the step itself measures.
struct old_logit_costs {
  std::int64_t forwards = 0; ///< passes over the batch or a part of it, one per version present
  std::int64_t tokens = 0;   ///< that went through the model for it, on the step's path
  std::int64_t versions = 0; ///< kept, the current one not counted
  std::int64_t device_bytes = 0, memory_bytes = 0, disk_bytes = 0; ///< held, weights and log-probs
  double copying_s = 0; ///< weights into and out of where they are kept
  double hidden_s = 0;  ///< spent off the step's path
  double waited_s = 0;  ///< by the trainer, for what was computed off its path
};

/// What one training step did. Token counts are of sampled tokens; fractions are shares of the
/// trained ones, over all epochs unless said otherwise.
struct step_statistics {
  version trained_from;
  double loss = 0; ///< mean over the optimiser steps
  double kl_loss = 0; ///< the KL penalty's part of it
  double learning_rate = 0;

  std::int64_t rollouts = 0;
  std::int64_t groups = 0;
  double reward_mean = 0, reward_std = 0;
  std::int64_t zero_variance_groups = 0; ///< all rewards equal: no signal
  double advantage_abs_mean = 0;

  std::int64_t trained_tokens = 0;   ///< each once, however many epochs
  std::int64_t processed_tokens = 0; ///< that went through the model, prompts too
  std::int64_t micro_batches = 0;
  std::int64_t updates = 0;         ///< optimiser steps made
  std::int64_t skipped_updates = 0; ///< for a loss or gradient that was not finite
  std::int64_t nonfinite_tokens = 0; ///< left out by the loss

  double grad_norm = 0; ///< before clipping, mean over the optimiser steps
  double clipped_updates = 0; ///< share of optimiser steps whose gradient was clipped

  double clip_fraction_positive = 0; ///< tokens of positive advantage that the loss clipped
  double clip_fraction_negative = 0;
  double mask_fraction = 0; ///< tokens that the loss's masks took out
  double entropy = 0;       ///< of the policy at the trained tokens, nats
  double top1_fraction = 0; ///< the sampled token was the likeliest
  double ess = 1;           ///< (Σw)²/(N·Σw²), w = θ/μ at the first pass
  double kl_infer_train = 0;    ///< E_μ[log μ − log θ] at the first pass
  double kl_infer_train_k3 = 0; ///< the same by the estimator of low variance
  double max_abs_prob_diff = 0; ///< |μ − θ| of a sampled token
  double kl_reference = 0;      ///< k3 of θ and the reference, where there is one

  double value_loss = 0;           ///< the critic's, mean over its updates
  double value_mean = 0;           ///< at the start of the step
  double value_clip_fraction = 0;  ///< tokens whose value had moved too far
  double explained_variance = 0;   ///< 1 − Var(return − value)/Var(return)
  double critic_grad_norm = 0;     ///< before clipping, mean over its updates

  double staleness_mean = 0;
  std::int32_t staleness_max = 0;
  std::vector<std::int64_t> staleness; ///< trained tokens by staleness 0, 1, …

  /// Tokens whose old log-prob came from each route.
  std::map<std::string, std::int64_t> old_logits_served;
  bool ewma_reset = false;
  /// By sampled token, in the order of the batch: the old log-prob and its route, where the strategy
  /// has more than one.
  std::vector<float> old_logp;
  std::vector<old_logit_route> old_logit_routes;
  old_logit_costs old_logits; ///< beside seconds.old_logits, which is what the step waited for them

  struct stages {
    double critic = 0, advantage = 0, old_logits = 0, forward_backward = 0, optimizer = 0, total = 0;
    double rank_wait = 0; ///< of these: waiting for other ranks of the trainer
  } seconds;

  double peak_rss_bytes = 0; ///< the most memory that this process, or a rank's, has had so far

  std::vector<std::string> remarks; ///< what a user should read: a skipped update, a fallback

  /// By metric name, for logs; all fields but the histogram and the remarks.
  [[nodiscard]] std::map<std::string, double> values() const;
};

/// What one step of supervised warm-up did.
struct supervised_statistics {
  double loss = 0;           ///< mean negative log-likelihood of the demonstrations' tokens, nats
  double token_accuracy = 0; ///< share of them that is the likeliest
  double grad_norm = 0;
  double learning_rate = 0;
  std::int64_t tokens = 0; ///< learnt from
  bool skipped = false;    ///< loss or gradient was not finite
  double seconds = 0;
};

} // namespace millrace::trainer
