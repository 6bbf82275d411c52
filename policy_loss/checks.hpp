#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {
struct settings;
}

namespace millrace::policy_loss {

/// What the checks look at: plain values out of the configuration.
struct algorithm_facts {
  std::string loss = "ppo_clip";                          ///< algorithm.loss.name
  nlohmann::json loss_params = nlohmann::json::object();  ///< algorithm.loss.params
  std::string advantage = "grpo";                         ///< algorithm.advantage.name
  /// algorithm.old_logits: recompute, snapshot, dedicated, interrupt, ewma, loglinear, arithmetic,
  /// behaviour
  std::string old_logits = "recompute";
  std::string aggregation = "token_mean";
  double kl_in_loss = 0;   ///< coefficients of algorithm.kl
  double kl_in_reward = 0;
  std::string kl_estimator = "k3";
  bool has_reference = false;
  bool has_critic = false;
  std::int64_t eta = 0;
  bool eta_enforced = true; ///< admission or consumption bounds staleness
  std::int64_t group_size = 1;
  std::int64_t minibatches = 1; ///< optimiser steps per batch and epoch
  std::int64_t epochs = 1;      ///< passes over a batch
  double temperature = 1;       ///< of sampling
  double train_temperature = 1; ///< applied to the training side's logits
  double top_p = 1;
  std::int64_t top_k = 0; ///< 0: off
  double min_p = 0;
  double ewma_reset_below = 0;          ///< 0: never
  std::string ewma_reset_rule = "mask"; ///< mask, mask_and_clip
  double proxy_weight = -1;             ///< on μ, of loglinear and arithmetic; −1: by version
};

/// The facts of a configuration. Sampling and training are scored at one temperature, so both
/// temperatures are `sampling.temperature`; the buffer enforces η.
algorithm_facts facts_of(const millrace::settings& settings);

enum class severity : std::uint8_t {
  refuse, ///< the mathematics would not be what was asked for: do not start
  explain ///< legal, perhaps wanted, but easily not what one thinks: say so in the log
};

struct finding {
  severity level = severity::explain;
  std::string id;   ///< stable, e.g. "r1_always_one"
  std::string path; ///< JSON path of the option to look at
  std::string what; ///< what happens
  std::string set;  ///< what to set
};

/// "PATH: what; instead: set".
std::string to_string(const finding& f);

/// Semantic checks of an algorithm's configuration: what would quietly change the mathematics.
/// Pure. Unknown names and ill-typed parameters are make_loss()'s matter and pass unnoticed here.
std::vector<finding> check(const algorithm_facts& facts);

} // namespace millrace::policy_loss
