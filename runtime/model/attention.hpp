#pragma once

// Causal self-attention for training, on CPU in fp32, forward and backward, over sequences laid end
// to end. Torch-free; the transformer makes it differentiable.

#include "runtime/model/kernels.hpp"

#include <cstdint>
#include <vector>

namespace millrace::model {

/// Segments of tokens end to end. A segment may continue another one, its prefix: it then attends to
/// the prefix's tokens too, as if they preceded it. So answers to one prompt share its computation.
struct segments {
  std::vector<std::int32_t> cu_seqlens{0}; ///< [S + 1]
  /// [S]: the segment that this one continues, or −1; empty: none continues any. A prefix continues
  /// none itself, and what continues it follows it directly.
  std::vector<std::int32_t> prefixes;

  [[nodiscard]] std::int64_t count() const {
    return static_cast<std::int64_t>(cu_seqlens.size()) - 1;
  }
  [[nodiscard]] std::int32_t prefix_of(std::int64_t segment) const {
    return prefixes.empty() ? -1 : prefixes[static_cast<std::size_t>(segment)];
  }
  [[nodiscard]] std::int32_t begin(std::int64_t segment) const {
    return cu_seqlens[static_cast<std::size_t>(segment)];
  }
  [[nodiscard]] std::int32_t length(std::int64_t segment) const {
    return begin(segment + 1) - begin(segment);
  }
  /// First segments of the trees (a prefix with what continues it), and the count: [T + 1].
  [[nodiscard]] std::vector<std::int32_t> trees() const;
};

/// q, k and v of every token: [N, (heads + 2·kv_heads)·head_dim], q and k already rotated.
struct attention_input {
  const float* qkv = nullptr;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  const segments* parts = nullptr;
  const std::vector<std::int32_t>* trees = nullptr; ///< parts->trees()

  [[nodiscard]] std::int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
  /// Units of work that may run at once: one for each tree and key head.
  [[nodiscard]] std::int64_t tasks() const {
    return (static_cast<std::int64_t>(trees->size()) - 1) * kv_heads;
  }
};

/// Tasks [first, last): fills their part of out [N, heads·head_dim] and log_sums [N, heads] (of the
/// softmax, for the backward pass).
void attention_forward(const attention_input& in, float* out, float* log_sums, std::int64_t first,
                       std::int64_t last);

/// Tasks [first, last): fills their part of g_qkv, shaped as in.qkv, from g_out, shaped as out.
/// Scores are computed again instead of being kept (as in FlashAttention, Dao et al. 2022).
void attention_backward(const attention_input& in, const float* out, const float* log_sums,
                        const float* g_out, float* g_qkv, std::int64_t first, std::int64_t last);

} // namespace millrace::model
