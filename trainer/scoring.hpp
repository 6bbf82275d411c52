#pragma once

#include "policy_loss/token_logprobs.hpp"
#include "runtime/model/transformer.hpp"
#include "trainer/batching.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <span>
#include <vector>

namespace millrace::trainer {

class collectives;

/// Tensors of a plain vector's contents (copied), int64, int32 or fp32.
at::Tensor tensor_of(const std::vector<std::int64_t>& values, c10::Device device = c10::kCPU);
at::Tensor tensor_of(const std::vector<std::int32_t>& values, c10::Device device = c10::kCPU);
at::Tensor tensor_of(const std::vector<float>& values, c10::Device device = c10::kCPU);

/// As the model reads them, on its device.
model::packed_batch batch_of(const packed_sequences& packed, c10::Device device);

/// Log-probs, entropies and top-1 hits of the packed sequences' sampled tokens, [M] each, under
/// `network` and on its device. The hidden states of other tokens never meet the head.
policy_loss::token_logprobs_result score_tokens(const model::transformer& network,
                                                const packed_sequences& packed,
                                                double temperature);

/// A batch with the place of each sequence's sampled tokens in per-token tensors over all of it.
struct token_layout {
  explicit token_layout(std::span<const training_sequence> sequences);

  std::vector<std::int32_t> cu_seqlens; ///< [S + 1]
  [[nodiscard]] std::int64_t tokens() const { return cu_seqlens.back(); }

  /// [M] int64: where the sampled tokens of pack(sequences, which) lie.
  [[nodiscard]] at::Tensor places(std::span<const std::size_t> which) const;
};

/// Scores sequences without gradient, a micro-batch at a time; what is scored goes to the network's
/// device and comes back to the host, where the batch is. With `data`, the data-parallel ranks
/// share the work: all of them call fill() with the same arguments.
class batch_scorer {
public:
  batch_scorer(std::span<const training_sequence> sequences, const token_layout& layout,
               std::int64_t micro_batch_tokens, micro_batch_packing packing, double temperature,
               bool share_prompts = true, collectives* data = nullptr)
      : sequences_(sequences), layout_(layout), micro_batch_tokens_(micro_batch_tokens),
        packing_(packing), temperature_(temperature), share_prompts_(share_prompts),
        data_(data) {}

  /// Writes the log-probs of the sampled tokens of `which` under `network` into their places in
  /// `logp`, fp32 [tokens of the batch].
  void fill(at::Tensor& logp, const model::transformer& network,
            std::span<const std::size_t> which) const;

  /// Splits `which`, leaving out sequences with no sampled token.
  [[nodiscard]] partition split(std::span<const std::size_t> which,
                                std::size_t at_least = 1) const;

  /// `which` in parts of nearly equal work for the data-parallel ranks, siblings together.
  [[nodiscard]] partition shares(std::span<const std::size_t> which) const;
  /// This rank's share in micro-batches: as many on every rank, where there are enough sequences.
  [[nodiscard]] partition split_share(std::span<const std::size_t> which) const;

  /// A part of split() as the model reads it.
  [[nodiscard]] packed_sequences packed(std::span<const std::size_t> part) const {
    return pack(sequences_, part, share_prompts_);
  }

  [[nodiscard]] std::span<const training_sequence> sequences() const { return sequences_; }
  [[nodiscard]] const token_layout& layout() const { return layout_; }
  [[nodiscard]] double temperature() const { return temperature_; }

private:
  std::span<const training_sequence> sequences_;
  const token_layout& layout_;
  std::int64_t micro_batch_tokens_;
  micro_batch_packing packing_;
  double temperature_;
  bool share_prompts_;
  collectives* data_;
};

} // namespace millrace::trainer
