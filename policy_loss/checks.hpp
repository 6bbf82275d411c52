#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::policy_loss {

/// Where the proximal (old) log-probs come from: `algorithm.old_logits`.
enum class old_logits_route : std::uint8_t {
  recompute, snapshot, dedicated, interrupt, ewma, loglinear, arithmetic, behaviour
};

/// What the checks look at: plain values, filled by the config layer.
struct algorithm_settings {
  std::string loss = "ppo_clip";
  nlohmann::json loss_params = nlohmann::json::object();
  std::string advantage = "grpo";
  nlohmann::json advantage_params = nlohmann::json::object();
  old_logits_route old_logits = old_logits_route::recompute;
  double kl_in_loss = 0;      ///< algorithm.kl.loss_coefficient
  double kl_in_reward = 0;    ///< algorithm.kl.reward_coefficient
  bool has_reference = false; ///< a reference model is configured
  bool has_critic = false;
  std::int64_t eta = 0;
  bool eta_enforced = true; ///< admission or consumption bounds staleness
  std::int64_t group_size = 1;
  std::int64_t minibatches = 1; ///< optimiser steps per batch and epoch
  std::int64_t epochs = 1;      ///< passes over a batch
  std::int64_t micro_batches = 1; ///< more than one: masks that look at the batch need it whole
  double temperature = 1;         ///< of sampling
  double train_temperature = 1;   ///< applied to the training side's logits
  double top_p = 1;
  std::int64_t top_k = 0; ///< 0: off
  double ewma_beta = 0;   ///< of old_logits = ewma
  double ewma_reset_below = 0;
  double w_behav = 0.5;   ///< of the interpolated routes
};

enum class severity : std::uint8_t {
  refuse, ///< the mathematics would not be what was asked for: do not start
  explain ///< legal, perhaps wanted, but easily not what one thinks: say so in the log
};

struct finding {
  severity level = severity::explain;
  std::string id;   ///< stable, e.g. "r1_always_one"
  std::string path; ///< JSON path of the value to change
  std::string what; ///< what happens
  std::string set;  ///< what to set instead
};

/// Semantic checks of an algorithm's configuration: what would quietly change the mathematics.
/// Pure. Unknown names and ill-typed parameters are make_loss()'s matter, not this function's.
std::vector<finding> check(const algorithm_settings& settings);

} // namespace millrace::policy_loss
