#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace millrace::policy_loss {

struct token_logprob_options {
  /// As when sampling: the distribution is softmax(logits / temperature).
  double temperature = 1;
  std::int64_t chunk = 0;      ///< tokens at a time; 0: chosen by device
  std::int64_t vocab_tile = 0; ///< vocabulary entries at a time; 0: chosen by device
};

struct token_logprobs_result {
  at::Tensor logp;    ///< [N] fp32 (fp64 for fp64 inputs), differentiable
  at::Tensor entropy; ///< [N], of the whole distribution, nats; differentiable
  at::Tensor top1;    ///< [N] bool: the target is (one of) the most probable
};

/// log softmax(hidden · head_weightᵀ / T)[targets], with the logits never held for more than a tile
/// of tokens × vocabulary at a time: an online log-sum-exp forward; the backward makes each tile
/// again and adds its share to both gradients in place. Logits are made in the dtype of the inputs,
/// everything after in fp32 (fp64 for fp64 inputs). Memory beside inputs and gradients:
/// O(chunk · vocab_tile + N). Four matrix products where the naive route has three.
/// @param hidden [N, d], after the final norm; only the positions that predict a trained token
/// @param head_weight [V, d]
/// @param targets [N] i64 in [0, V)
/// @throws millrace::invariant_error on shapes or targets out of range
token_logprobs_result token_logprobs(const at::Tensor& hidden, const at::Tensor& head_weight,
                                     const at::Tensor& targets,
                                     const token_logprob_options& options = {});

} // namespace millrace::policy_loss
