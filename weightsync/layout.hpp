#pragma once

#include "runtime/tensor_view.hpp"
#include "weightsync/slice.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace::weightsync {

/// Where a slice of a global tensor lies on one rank: in elements [local_offset, local_offset +
/// part.count) of the local tensor named `local`. Several placements with one `local` describe a
/// fused tensor.
struct placement {
  std::string tensor; ///< global (Hugging Face) name
  tensor_shape shape; ///< global
  slice part;
  std::string local;
  std::int64_t local_offset = 0; ///< elements

  bool operator==(const placement&) const = default;
};

/// All that one rank holds: of a trainer, what it publishes; of a generator, what it needs.
using layout = std::vector<placement>;

/// A receiver's i8 tensor has its scales beside it: f32, one for each row, under this name.
inline std::string scale_name(const std::string& tensor) { return tensor + "_scale"; }

/// Every tensor whole and under its own name; the scales of i8 tensors come with these.
layout replicated(std::span<const tensor_view> views);

/// The layout of optimizer-sharded ranks: each tensor as one sequence, cut in nearly equal parts.
layout flat_sharded(std::span<const tensor_view> whole_tensors, std::int32_t rank,
                    std::int32_t ranks);

/// The numbers of a Llama-shaped model that its tensor-parallel layout depends on.
struct llama_shape {
  std::int32_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t vocabulary = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  bool tied_embeddings = false; ///< no lm_head.weight
  bool attention_bias = false;  ///< q, k, v have biases (Qwen2)
  bool qk_norm = false;         ///< q_norm, k_norm (Qwen3)
};

struct tensor_parallel {
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
  bool fused_qkv = false;     ///< q, k, v as one qkv_proj, each rank's rows of q, then k, then v
  bool fused_gate_up = false; ///< gate, up as one gate_up_proj, likewise
};

/// Megatron's layout: q, k, v, gate and up by rows of the weight (whole heads), o and down by
/// columns, embedding and head by vocabulary, norms on every rank. Uneven where a dimension cannot
/// be divided; with fewer kv heads than ranks, each rank has the head that its queries use.
layout llama_layout(const llama_shape& model, const tensor_parallel& tp);

/// Local tensors that a layout describes: each one's name and its number of elements.
struct local_tensor {
  std::string name;
  std::int64_t elements = 0;
  tensor_shape shape; ///< as the weight's own, cut along the split axis; fused along axis 0
};
std::vector<local_tensor> local_tensors(const layout& l);

} // namespace millrace::weightsync
