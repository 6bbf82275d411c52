#pragma once

// The transformer's differentiable operations. On CPU in fp32 each is one fused kernel with its own
// backward; elsewhere the same mathematics is composed of ATen's operations.

#include "runtime/model/attention.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/model/tensor_parallel.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
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

/// Rotary tables as the kernels and as ATen want them.
struct rotary {
  rope_tables host;
  std::vector<float> minus_sin; ///< rotates back
};

/// Where the sequences of a batch begin and end, with its rotary angles.
struct attention_layout {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  segments parts;
  std::vector<std::int32_t> trees; ///< parts.trees()
  at::Tensor positions; ///< [N] int64
  std::shared_ptr<const rotary> rotation;
};

/// Rotates q and k and attends causally within each segment, and to all of its prefix: qkv [N, (heads + 2·kv_heads)·dim] →
/// [N, heads·dim].
at::Tensor causal_attention(const at::Tensor& qkv,
                            const std::shared_ptr<const attention_layout>& layout);

// -- over the ranks of a tensor-parallel group; without one, nothing happens --------------------------

using group_pointer = std::shared_ptr<const tensor_group>;

/// x as it is; its gradient is summed over the ranks. Before what is split by outputs. Where the
/// ranks share the tokens (tensor_group::sequence), x is this rank's and the result all `tokens`.
at::Tensor enter_group(const at::Tensor& x, const group_pointer& group, std::int64_t tokens);

/// The ranks' sum; its gradient is passed on as it is. After what is split by inputs. Where the ranks
/// share the tokens, this rank's of it.
at::Tensor leave_group(const at::Tensor& x, const group_pointer& group);

/// Where the ranks share the tokens: all `tokens` of what each rank has of x. Every rank's gradient is
/// that of all of it, and keeps its own rows. Elsewhere x.
at::Tensor collect_tokens(const at::Tensor& x, const group_pointer& group, std::int64_t tokens);

/// layer(x), whose inner values are not kept for the backward pass, but computed again there
/// (Chen et al., 2016). x must take a gradient.
at::Tensor recomputed(const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> layer);

} // namespace millrace::model
