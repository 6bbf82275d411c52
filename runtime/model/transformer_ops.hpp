#pragma once

// The transformer's differentiable operations. On CPU in fp32 and bf16 each is one fused kernel with
// its own backward; elsewhere the same mathematics is composed of ATen's operations, which read no
// memory themselves and so run on any device.

#include "runtime/model/attention.hpp"
#include "runtime/model/model_config.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace millrace::model {

/// x [N, d] / √(mean x² + eps) · weight [d]
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// Several matrices [nᵢ, k] that are neighbours in memory, as one matrix `joined` [Σ nᵢ, k] that
/// takes no gradient itself; likewise their biases (undefined where there are none).
struct joined_weights {
  at::Tensor joined, joined_bias;
  std::vector<at::Tensor> parts, part_biases;
};

/// x [N, k] · joinedᵀ + bias, [N, Σ nᵢ]; the gradients go to the parts.
at::Tensor joined_linear(const at::Tensor& x, const joined_weights& w);

/// silu(gate) · up of gate_up [N, 2·ff] → [N, ff]
at::Tensor swiglu(const at::Tensor& gate_up);

/// While one lives, this thread composes operations on a CPU, too: what other devices compute, for
/// comparison.
class composed_operations {
public:
  composed_operations();
  ~composed_operations();
  composed_operations(const composed_operations&) = delete;
  composed_operations& operator=(const composed_operations&) = delete;

private:
  bool before_;
};

/// Rotary tables as the kernels and as ATen want them.
struct rotary {
  rope_tables host;
  std::vector<float> minus_sin; ///< rotates back
  at::Tensor cos, sin; ///< [positions, head_dim / 2] fp32, on the model's device
};

/// x [N, heads, dim] turned by its rows' angles, cos and sin [N, 1, dim / 2], on any device.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

/// How rows of a batch are laid out as rectangles: segments of like length together, each with its
/// prefix before it, padded at their ends to the longest of the rectangle, which is less than twice as
/// long as any. On the batch's device.
struct padded_rows {
  struct rectangle {
    std::int64_t segments = 0, longest = 0;
    at::Tensor from; ///< [segments · longest] int64: the row there; 0 where there is none
  };
  std::vector<rectangle> rectangles;
  at::Tensor slot; ///< [N] int64: where each row lies in all rectangles, one behind the other
};

/// Where the sequences of a batch begin and end, with its rotary angles.
struct attention_layout {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  segments parts;
  std::vector<std::int32_t> trees; ///< parts.trees()
  at::Tensor positions; ///< [N] int64
  std::shared_ptr<const rotary> rotation;
  std::optional<padded_rows> padded; ///< where operations are composed
};

/// Notes what the batch's layers need in common, for rows like `x`.
void complete(attention_layout& layout, const at::Tensor& x);

/// Rotates q and k and attends causally within each segment, and to all of its prefix: qkv
/// [N, (heads + 2·kv_heads)·dim] → [N, heads·dim].
at::Tensor causal_attention(const at::Tensor& qkv,
                            const std::shared_ptr<const attention_layout>& layout);

} // namespace millrace::model
