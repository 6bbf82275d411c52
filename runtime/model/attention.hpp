#pragma once

// Causal self-attention for training, on CPU in fp32, forward and backward, over sequences laid end
// to end. Torch-free; the transformer makes it differentiable.

#include "runtime/model/kernels.hpp"

#include <cstdint>
#include <vector>

namespace millrace::model {

/// q, k and v of every token: [N, (heads + 2·kv_heads)·head_dim], q and k already rotated.
struct attention_input {
  const float* qkv = nullptr;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  const std::vector<std::int32_t>* cu_seqlens = nullptr; ///< [S + 1]

  [[nodiscard]] std::int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
  /// Units of work that may run at once: one for each sequence and key head.
  [[nodiscard]] std::int64_t tasks() const {
    return (static_cast<std::int64_t>(cu_seqlens->size()) - 1) * kv_heads;
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
