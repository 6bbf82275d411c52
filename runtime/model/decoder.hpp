#pragma once

#include "runtime/model/model_config.hpp"
#include "runtime/model/worker_pool.hpp"
#include "runtime/tensor_view.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace millrace::model {

/// Consecutive tokens of one sequence that are to be computed now; what precedes them is in the
/// cache already.
struct token_run {
  std::span<const std::int32_t> tokens; ///< at least one
  std::int32_t start = 0;               ///< position of the first
  const std::int32_t* blocks = nullptr; ///< the sequence's block table, covering all of them
  bool wants_logits = false;            ///< of the last token
};

/// The transformer as a generator needs it: token by token over a block-wise KV cache, with weights
/// that are replaced while it runs. cpu_decoder computes on the processor, device_decoder by
/// libtorch wherever that can. Not for use by two threads at once, except prepare() and writing
/// into staging()'s memory.
class decoder {
public:
  virtual ~decoder() = default;

  /// Computes all runs together, writing their keys and values into the cache; runs of one batch
  /// must not depend on each other. Needs swap() once before.
  virtual void forward(std::span<const token_run> runs) = 0;

  /// After forward(): logits [vocab_size], in host memory, of the i-th among the runs that wanted
  /// them. The caller may overwrite them.
  [[nodiscard]] virtual float* logits(std::size_t i) = 0;

  /// Copies what block `from` holds (all layers) into `to`.
  virtual void copy_block(std::int32_t from, std::int32_t to) = 0;

  /// Buffers for the next weights, valid for the decoder's life: Hugging Face names and shapes, all
  /// in one kind of memory. Vectors are fp32, matrices in the decoder's precision; one of 8 bits is
  /// followed by its scales, fp32, one per row, under its name and "_scale".
  [[nodiscard]] virtual std::vector<tensor_view> staging() = 0;
  /// Lays the staged weights out for computing. May run beside forward().
  virtual void prepare() = 0;
  /// Staged weights become current; prepares them first where that was not done.
  virtual void swap() = 0;

  [[nodiscard]] virtual const model_config& config() const = 0;
  /// Of one version, as it is staged.
  [[nodiscard]] virtual std::int64_t weight_bytes() const = 0;
  /// Threads for the caller's own loops between forward()s.
  [[nodiscard]] virtual worker_pool& threads() = 0;
};

/// How large a decoder is to be.
struct decoder_options {
  std::int32_t blocks = 0;      ///< of the KV cache
  std::int32_t max_context = 0; ///< positions
  int threads = 1;
  dtype weights = dtype::f32; ///< precision of the matrices
};

using decoder_factory
  = std::function<std::unique_ptr<decoder>(const model_config&, const decoder_options&)>;

} // namespace millrace::model
