#pragma once

#include "runtime/ids.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace millrace::trainer {

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

  double staleness_mean = 0;
  std::int32_t staleness_max = 0;
  std::vector<std::int64_t> staleness; ///< trained tokens by staleness 0, 1, …

  /// Tokens whose old log-prob came from each route.
  std::map<std::string, std::int64_t> old_logits_served;
  bool ewma_reset = false;

  struct stages {
    double advantage = 0, old_logits = 0, forward_backward = 0, optimizer = 0, total = 0;
  } seconds;

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
