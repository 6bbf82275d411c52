#pragma once

#include "rollout/sampler.hpp"
#include "runtime/error.hpp"
#include "runtime/ids.hpp"
#include "runtime/kv_policy.hpp"
#include "runtime/messages.hpp"
#include "runtime/model/decoder.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/model/tokenizer.hpp"
#include "runtime/tensor_view.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace millrace::generation {

struct engine_options {
  std::int32_t max_batch = 128;      ///< sequences that run at once; the others wait
  std::int32_t max_context = 0;      ///< prompt + answer tokens; 0: the model's own limit
  /// 0: enough for max_batch sequences of max_context, within 4 GiB.
  std::int64_t kv_cache_tokens = 0;
  std::int32_t prefill_tokens = 256; ///< prompt tokens computed per step at most
  bool share_prefixes = true;        ///< compute equal prefixes once per version
  kv_policy kv = kv_policy::recompute;
  /// Precision of the weight matrices, in memory and in computing: f32, bf16 or 8 bits with a scale
  /// per output, activations being quantised as they come: i8 in the CPU's decoder, f8_e4m3 in a
  /// device's.
  dtype weights = dtype::f32;
  /// Makes what computes; empty: the CPU's decoder.
  model::decoder_factory decoder;
  std::int32_t threads = 1;
  std::vector<std::int32_t> stop_tokens; ///< any ends an answer; empty: the tokenizer's
  /// Draws tokens in place of the built-in sampler; called from several threads. Empty: that one.
  std::function<sampled_token(std::span<float> logits, const sampling_params&, double draw,
                              std::span<const std::int32_t> forbidden)> draw;
  /// Seconds on the run's clock, for started_at, finished_at and pauses. Empty: a steady clock.
  std::function<double()> clock;
};

/// The likeliest tokens at each position that a rollout samples, for who asked (engine::watch).
struct likely_tokens {
  std::size_t count = 0; ///< wanted at each position
  std::vector<std::vector<likely_token>> positions; ///< sampled since then, oldest first
};

/// Counters since the engine was made.
struct engine_statistics {
  std::int64_t steps = 0;
  std::int64_t sampled_tokens = 0;
  std::int64_t prefilled_tokens = 0;   ///< computed for prompts and resumed rollouts
  std::int64_t reused_tokens = 0;      ///< found in the cache instead
  std::int64_t reprefilled_tokens = 0; ///< computed again after swaps and preemptions
  std::int64_t preemptions = 0;        ///< sequences put back for lack of cache
  std::int64_t decoded_rows = 0;       ///< sum over steps of the sequences decoded
  std::int32_t kv_blocks = 0;          ///< capacity
  std::int32_t kv_blocks_free = 0;
};

/// Continuous-batching generation under weights that change while it runs.
///
/// One thread at a time may call it, except for prepare() and for writing into staging()'s memory,
/// which may go on beside step(). Life: fill staging(), install(version 0), then submit and step.
class engine {
public:
  virtual ~engine() = default;

  /// Queues a rollout: a fresh one, or a partial one to be continued exactly. Throws user_error
  /// when it can't be generated from (no prompt token, an id outside the vocabulary, arrays of
  /// unequal length, longer than the context), invariant_error when its id is here already.
  virtual void submit(generation_task task) = 0;

  /// From its next token on, notes the likeliest tokens at each of a submitted rollout's positions,
  /// in step() and before it returns that token. Throws user_error where the engine can't tell.
  virtual void watch(rollout_id id, std::shared_ptr<likely_tokens> /*into*/) {
    throw user_error("rollout " + to_string(id) + ": this engine tells the sampled token's "
                     "log-prob, but not those of other likely ones");
  }

  /// Forgets a rollout, running or waiting; false when it isn't here.
  virtual bool cancel(rollout_id id) = 0;

  /// Admits waiting sequences, computes prompts (at most prefill_tokens), and samples one token
  /// for every sequence that is ready. Returns the finished ones, with text and finish set.
  /// A long prompt takes several steps, while the others go on decoding.
  virtual std::vector<rollout> step() = 0;

  /// Takes every unfinished rollout out, in the order of submission.
  virtual std::vector<rollout> drain() = 0;
  /// Copies of them, which stay.
  [[nodiscard]] virtual std::vector<rollout> partials() const = 0;

  [[nodiscard]] virtual std::size_t running() const = 0;
  [[nodiscard]] virtual std::size_t waiting() const = 0;
  /// Tokens still to be generated, at most, by all that is here: for routing.
  [[nodiscard]] virtual std::int64_t outstanding_tokens() const = 0;
  /// Whom step() waits for, and so makes no tokens; empty: nobody.
  [[nodiscard]] virtual std::string waits_for() const { return {}; }

  /// Buffers to be filled with the next version's weights, where the decoder computes: Hugging Face
  /// names and shapes, matrices in the precision of `weights`, vectors in fp32. A matrix of 8 bits
  /// has its scales, fp32, one per row, under its name and "_scale". Valid for the engine's life.
  /// What they hold after install() is unspecified.
  [[nodiscard]] virtual std::vector<tensor_view> staging() = 0;

  /// Lays staged weights out for computing, beside the current ones, so that install() is only a
  /// swap. Optional; may run in another thread while step() does. After it staging() may be
  /// refilled only once install() has returned.
  virtual void prepare() = 0;

  /// At a token boundary: the staged weights become current; the KV cache of running sequences is
  /// recomputed or kept. Fills pause_s, prefill_s, bytes, reprefilled_tokens and running. `v` must
  /// be greater than current().
  virtual swap_report install(version v) = 0;

  /// no_version before the first install().
  [[nodiscard]] virtual version current() const = 0;

  [[nodiscard]] virtual engine_statistics statistics() const = 0;
};

/// The built-in engine. `tokens` (may be null: then rollouts get no text) must outlive nothing: it is
/// shared. Throws user_error for options that can't work, such as a cache smaller than one context.
std::unique_ptr<engine> make_engine(const engine_options& options,
                                    const model::model_config& config,
                                    std::shared_ptr<const model::tokenizer> tokens);

} // namespace millrace::generation
