#pragma once

// Everything that a user can set, as plain structs: one per section of the configuration file. Each
// field's range and meaning stand in describe.cpp (`millrace options` prints them); the defaults are
// here. Times are in seconds.

#include "runtime/kv_policy.hpp"
#include "runtime/log.hpp"
#include "runtime/messages.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

// -- choices: in the file they are strings, listed by names() in the enumerators' order -----------

/// What happens to a rollout whose oldest token would exceed η when it is trained on.
enum class over_bound : std::uint8_t { mask, drop, wait };
constexpr std::array<std::string_view, 3> names(over_bound) { return {"mask", "drop", "wait"}; }

enum class weight_dtype : std::uint8_t { fp32, bf16, int8, fp8 };
constexpr std::array<std::string_view, 4> names(weight_dtype) {
  return {"fp32", "bf16", "int8", "fp8"};
}

/// What computes: this machine's processor, or a CUDA device.
enum class compute_device : std::uint8_t { cpu, cuda };
constexpr std::array<std::string_view, 2> names(compute_device) { return {"cpu", "cuda"}; }

/// Whether prompts are put to the model through its chat template.
enum class chat_use : std::uint8_t { automatic, none };
constexpr std::array<std::string_view, 2> names(chat_use) { return {"auto", "none"}; }

enum class replay_order : std::uint8_t { oldest };
constexpr std::array<std::string_view, 1> names(replay_order) { return {"oldest"}; }

/// Where the log-probs of the proximal policy come from.
enum class old_logits_source : std::uint8_t {
  recompute, behaviour, loglinear, arithmetic, ewma, snapshot, dedicated, interrupt
};
constexpr std::array<std::string_view, 8> names(old_logits_source) {
  return {"recompute", "behaviour", "loglinear", "arithmetic",
          "ewma",      "snapshot",  "dedicated", "interrupt"};
}
/// Whether each token's old log-prob is that of the very version that sampled it.
constexpr bool exact(old_logits_source s) { return s >= old_logits_source::snapshot; }

/// What serves a token whose version is not to be had any more.
enum class old_logits_fallback : std::uint8_t { ewma, recompute };
constexpr std::array<std::string_view, 2> names(old_logits_fallback) {
  return {"ewma", "recompute"};
}

/// Which tokens count as kept when the average of old_logits "ewma" decides whether to reset.
enum class ewma_reset_rule : std::uint8_t { mask, mask_and_clip };
constexpr std::array<std::string_view, 2> names(ewma_reset_rule) {
  return {"mask", "mask_and_clip"};
}

/// What the learning rate does after its warm-up.
enum class lr_schedule : std::uint8_t { constant, linear, cosine };
constexpr std::array<std::string_view, 3> names(lr_schedule) {
  return {"constant", "linear", "cosine"};
}

/// How sequences are put into micro-batches.
enum class micro_batch_packing : std::uint8_t { fewest_sequences, karmarkar_karp };
constexpr std::array<std::string_view, 2> names(micro_batch_packing) {
  return {"fewest_sequences", "karmarkar_karp"};
}

/// How per-token losses become one number (vectors/README.md, `agg`).
enum class loss_aggregation : std::uint8_t {
  token_mean, seq_mean_token_mean, seq_mean_token_sum, fixed_length, sum_over_const
};
constexpr std::array<std::string_view, 5> names(loss_aggregation) {
  return {"token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "fixed_length",
          "sum_over_const"};
}

enum class kl_place : std::uint8_t { loss, reward };
constexpr std::array<std::string_view, 2> names(kl_place) { return {"loss", "reward"}; }

enum class kl_estimator : std::uint8_t { k1, k2, k3 };
constexpr std::array<std::string_view, 3> names(kl_estimator) { return {"k1", "k2", "k3"}; }

enum class kl_reference : std::uint8_t { none, initial, moving };
constexpr std::array<std::string_view, 3> names(kl_reference) {
  return {"none", "initial", "moving"};
}

/// What gives the values that advantages of single tokens (gae, vtrace) need.
enum class critic_kind : std::uint8_t { none, head, model };
constexpr std::array<std::string_view, 3> names(critic_kind) { return {"none", "head", "model"}; }

/// What the trainer's layers compute in; weights, gradients and optimiser state are fp32 throughout.
enum class compute_dtype : std::uint8_t { fp32, bf16 };
constexpr std::array<std::string_view, 2> names(compute_dtype) { return {"fp32", "bf16"}; }

/// `automatic`: local in one process; UCX, and sockets where it has no way, between several.
enum class sync_transport : std::uint8_t { automatic, local, ucx, tcp };
constexpr std::array<std::string_view, 4> names(sync_transport) {
  return {"auto", "local", "ucx", "tcp"};
}

// -- sections --------------------------------------------------------------------------------------

struct run_settings {
  std::string dir; ///< empty: a fresh folder under runs/, named after the configuration and the time
  std::int32_t steps = 100;
  std::int32_t checkpoint_every = 50; ///< training steps; 0: only at the end
  std::int32_t keep_checkpoints = 2;
  std::int32_t keep_best = 0; ///< beside these, those of the highest mean reward
  std::int32_t eval_every = 0; ///< training steps; 0: only before and after
  std::int32_t log_every = 1;
};

/// Of a model made from scratch. Ignored where model.path names a folder.
struct architecture_settings {
  std::int32_t layers = 4;
  std::int32_t hidden = 128;
  std::int32_t heads = 4;
  std::int32_t kv_heads = 2;
  std::int32_t intermediate = 352;
  std::int32_t max_positions = 128;
  double rope_theta = 10000.0;
  double norm_eps = 1e-6;
  bool tie_embeddings = true;
};

struct model_settings {
  std::string path; ///< a Hugging Face folder; empty: made from scratch by `architecture`
  architecture_settings architecture;
};

struct tokenizer_settings {
  std::string alphabet; ///< empty: what the prompts need
};

/// The built-in arithmetic tasks. From easy to hard: small operands of one operation; more operations
/// and larger operands; a third term; products of two digits.
struct arithmetic_settings {
  std::int32_t max_operand = 99;
  std::string operations = "+-";
  std::int32_t terms = 2;
  double words = 0.5;          ///< the share of operands and operations written as words
  bool negative = true;        ///< whether results below 0 are asked for
  bool worked = false;         ///< answers count their way to the result: their lengths differ
  bool held_out_facts = false; ///< held-out tasks aren't trained on in any other writing either
};

struct data_settings {
  std::string source = "arithmetic"; ///< arithmetic or jsonl
  std::string file;                  ///< of the source jsonl
  std::string question_field = "question";
  std::string answer_field = "answer";
  std::string prompt_template = "{question}"; ///< `data.template` in the file
  chat_use chat_template = chat_use::automatic;
  double held_out = 200; ///< prompts kept from training: below 1 a fraction, from 1 a count
  bool shuffle = true;
  arithmetic_settings arithmetic;
  nlohmann::json params = nlohmann::json::object(); ///< of a plugin's source
};

/// A function by name with its own parameters, which it validates itself.
struct named_settings {
  std::string name;
  nlohmann::json params = nlohmann::json::object();
};

struct rollout_settings {
  std::int32_t eta = 2;         ///< η: the largest staleness that may be trained on
  std::int32_t batch_size = 64; ///< B: rollouts that a training step consumes
  std::int32_t group_size = 8;  ///< n: answers to each prompt
  std::int32_t max_concurrent = 256;
  millrace::over_bound over_bound = millrace::over_bound::mask;
  bool filter_zero_variance = false; ///< groups whose rewards are all equal teach nothing
  std::int32_t max_attempts = 3;
  double request_timeout_s = 120;
  std::int32_t progress_every_tokens = 64;
  named_settings environment; ///< of a plugin, that answers the model's turns; no name: one turn
};

struct generator_settings {
  std::int32_t count = 1;
  std::int32_t max_batch = 128;
  std::int32_t threads = 1;
  compute_device device = compute_device::cpu;
  kv_policy kv = kv_policy::recompute;
  weight_dtype dtype = weight_dtype::fp32;
  std::int64_t kv_cache_tokens = 0; ///< 0: enough for max_batch sequences of full length, ≤ 4 GiB
  std::int32_t prefill_chunk = 256; ///< prompt tokens between two decode steps
  named_settings backend; ///< of a plugin, in place of the built-in engine; no name: that
  named_settings sampler; ///< of a plugin, in place of temperature, top-p and so on; no name: those
};

struct reward_settings {
  std::string kind = "numeric";
  std::int32_t workers = 2;
  double timeout_s = 10;
  double correct = 1;
  double wrong = 0;
  nlohmann::json params = nlohmann::json::object(); ///< for the kind; validated by it
};

struct replay_settings {
  std::int32_t capacity = 0; ///< rollouts; 0: (η + 1)·B, the least that can't block admission
  replay_order order = replay_order::oldest;
};

struct kl_settings {
  double coefficient = 0; ///< 0: off
  kl_estimator estimator = kl_estimator::k3;
  kl_place place = kl_place::loss; ///< `algorithm.kl.in` in the file
  kl_reference reference = kl_reference::none;
  std::int32_t move_every = 100; ///< versions, of the moving reference
};

struct critic_settings {
  critic_kind kind = critic_kind::none;
  double lr = 0;     ///< 0: trainer.lr
  double clip = 0.2; ///< how far a value may move within a step; 0: as far as it likes
};

/// Of old_logits "ewma": the parameters' average that serves as proximal policy.
struct ewma_settings {
  double window = 4;      ///< W, in versions: β = W/(W + 2), the average lies W/2 versions back
  double reset_below = 0; ///< τ; 0: never reset
  ewma_reset_rule reset_rule = ewma_reset_rule::mask;
};

/// Of old_logits "snapshot" and "dedicated": the versions that are kept.
struct snapshot_settings {
  std::int32_t versions = 0; ///< the current one included; 0: η + 1, all that tokens may come from
  std::int64_t device_bytes = 0;
  std::int64_t memory_bytes = std::int64_t{8} << 30;
  std::int64_t disk_bytes = 0;
  std::string folder; ///< empty: in the run directory
};

/// Of old_logits "interrupt".
struct interrupt_settings {
  std::int32_t slots = 1; ///< versions kept beside the current one until no generator samples with them
};

/// Of old_logits "dedicated".
struct dedicated_settings {
  std::int32_t threads = 1;
  compute_device device = compute_device::cpu;
  double wait_s = 10; ///< by a step, for an old-logit node that is not done with its batch
};

struct algorithm_settings {
  named_settings loss{"decoupled_ppo"};
  named_settings advantage{"grpo"};
  old_logits_source old_logits = old_logits_source::recompute;
  ewma_settings ewma;
  snapshot_settings snapshot;
  interrupt_settings interrupt;
  dedicated_settings dedicated;
  critic_settings critic;
  millrace::old_logits_fallback old_logits_fallback = millrace::old_logits_fallback::ewma;
  double proxy_weight = -1; ///< on μ, of loglinear and arithmetic; −1: by each token's version
  loss_aggregation aggregation = loss_aggregation::token_mean;
  kl_settings kl;
};

/// The trainer's ranks, each a process: dp replicas of the model, each over tp ranks.
struct parallel_settings {
  std::int32_t dp = 1;
  std::int32_t tp = 1;
  bool zero1 = false; ///< each of dp ranks keeps its part of the optimiser's state only
  bool sequence = false; ///< tp ranks share the tokens where the model isn't split
  bool sharded_checkpoints = true; ///< each rank writes its own part of the optimiser's state
  std::int32_t port = 0; ///< of rank 0's meeting point; 0: a free one
  double timeout_s = 60; ///< a rank that doesn't answer for so long is given up
  bool spawn = true;     ///< rank 0 starts the others on its own machine
};

struct trainer_settings {
  double lr = 3e-4;
  std::int32_t lr_warmup_steps = 0;
  millrace::lr_schedule lr_schedule = millrace::lr_schedule::constant;
  double lr_floor = 0; ///< share of lr that linear and cosine reach at run.steps
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double grad_clip = 1.0; ///< global norm; 0: off
  std::int32_t minibatches = 2;
  std::int32_t epochs = 1;
  std::int32_t micro_batch_tokens = 4096;
  micro_batch_packing packing = micro_batch_packing::fewest_sequences;
  bool share_prompts = true;
  bool activation_checkpointing = false;
  compute_device device = compute_device::cpu;
  compute_dtype compute = compute_dtype::fp32;
  bool offload_optimizer = false; ///< moments and master weights stay in host memory
  std::int32_t threads = 1;
  parallel_settings parallel;
};

/// Supervised warm-up on demonstrations, before the reinforcement learning.
struct warmup_settings {
  bool enabled = false;
  std::int32_t steps = 200;
  std::int32_t batch_size = 64;
  double lr = 2e-3;
  double target_accuracy = 0; ///< ends the warm-up when held-out accuracy reaches it; 0: never
};

struct eval_settings {
  std::int32_t prompts = 200; ///< held-out prompts per evaluation; 0: all of them
  std::int32_t samples = 1;
  double temperature = 0;
};

struct weight_sync_settings {
  sync_transport transport = sync_transport::automatic;
  std::string protocols; ///< as UCX_TLS; empty: all that there are
  std::string devices;   ///< as UCX_NET_DEVICES; empty: UCX chooses, sockets take the node's host
  double timeout_s = 30;
  std::int32_t retries = 3;
  double lease_s = 60;
  bool delta = false; ///< send only what changed since the version before, where that is less
};

struct supervisor_settings {
  std::int32_t max_restarts = 5;
  double stall_report_s = 30;
};

/// How many actors of each kind a node runs. Exactly one node has the trainer, and with it the
/// rollout controller and the publisher of weights.
struct node_actors_settings {
  std::int32_t trainer = 0;
  std::int32_t generator = 0;
  std::int32_t reward = 0;
  std::int32_t replay = 0;
  std::int32_t evaluator = 0;
  std::int32_t old_logits = 0; ///< the old-logit actor of algorithm.old_logits "dedicated"
};

/// One process of a cluster.
struct node_settings {
  std::string name;
  std::string host = "127.0.0.1"; ///< where it runs: an address or a name that others reach
  std::int32_t port = 0;          ///< the trainer's node listens on it; others need none
  node_actors_settings actors;
  std::vector<std::string> devices; ///< CUDA devices that it sees; empty: all
  nlohmann::json env = nlohmann::json::object(); ///< environment variables: text by name
};

/// Certificates for the links between nodes, in PEM files.
struct tls_settings {
  std::string certificate;
  std::string key;
  std::string ca;
};

/// Several processes, on one machine or many. No nodes: everything in one process.
struct cluster_settings {
  std::vector<node_settings> nodes;
  tls_settings tls;
  bool insecure = false; ///< links beyond loopback without certificates
  double heartbeat_s = 1;
  double lost_after_s = 5; ///< a node that says nothing for so long is gone
  double join_timeout_s = 120;
  std::int32_t max_message_mb = 256;

  /// The node with the trainer, or nullptr.
  [[nodiscard]] const node_settings* head() const {
    for (const auto& n : nodes)
      if (n.actors.trainer > 0)
        return &n;
    return nullptr;
  }
  /// The node beside the trainer's that has the old-logit actor, or nullptr.
  [[nodiscard]] const node_settings* old_logit_node() const {
    for (const auto& n : nodes)
      if (n.actors.old_logits > 0 && n.actors.trainer == 0)
        return &n;
    return nullptr;
  }
  [[nodiscard]] const node_settings* find(std::string_view name) const {
    for (const auto& n : nodes)
      if (n.name == name)
        return &n;
    return nullptr;
  }
};

/// Where a running process shows itself over HTTP.
struct monitor_settings {
  bool enabled = true;
  std::string host = "127.0.0.1";
  std::int32_t port = 0; ///< 0: any that is free
  std::string token;     ///< empty: none is asked for
};

/// A plugin's shared library (runtime/include/millrace/plugin.hpp).
struct plugin_settings {
  std::string path;      ///< relative to the working directory
  bool isolated = false; ///< its rewards in processes of their own
  nlohmann::json config = nlohmann::json::object(); ///< for all that it registers
};

/// An actor of a plugin, in the trainer's process.
struct actor_settings {
  std::string kind;
  nlohmann::json params = nlohmann::json::object();
};

struct log_settings {
  log_level level = log_level::info;
  bool tensorboard = false; ///< event files beside metrics.jsonl
};

struct settings {
  std::uint64_t seed = 0;
  bool deterministic = false;
  run_settings run;
  model_settings model;
  tokenizer_settings tokenizer;
  data_settings data;
  rollout_settings rollout;
  sampling_params sampling{.max_tokens = 32}; ///< its seed is the run's seed
  generator_settings generator;
  reward_settings reward;
  replay_settings replay;
  algorithm_settings algorithm;
  trainer_settings trainer;
  warmup_settings warmup;
  eval_settings eval;
  weight_sync_settings weight_sync;
  supervisor_settings supervisor;
  cluster_settings cluster;
  monitor_settings monitor;
  log_settings log;
  std::vector<plugin_settings> plugins;
  std::vector<actor_settings> actors;

  /// Rollouts that the replay buffer holds, with the default resolved.
  [[nodiscard]] std::int32_t replay_capacity() const {
    return replay.capacity > 0 ? replay.capacity : (rollout.eta + 1) * rollout.batch_size;
  }
};

} // namespace millrace
