#pragma once

#include "policy_loss/token_logprobs.hpp"
#include "runtime/model/tensor_parallel.hpp"

#include <memory>

namespace millrace::trainer {

/// policy_loss::token_logprobs over a head whose vocabulary is split over the ranks of `group`: the
/// same result on every rank. `head_weight` [Vᵣ, d] is this rank's part, which begins at
/// `first_token`; `targets` are of the whole vocabulary. Logits are held for `chunk` tokens × Vᵣ at a
/// time, and made again in the backward pass. The gradient of `hidden` is already summed over ranks.
policy_loss::token_logprobs_result
parallel_token_logprobs(const at::Tensor& hidden, const at::Tensor& head_weight,
                        const at::Tensor& targets, double temperature, std::int64_t first_token,
                        const std::shared_ptr<const model::tensor_group>& group,
                        std::int64_t chunk = 1024);

} // namespace millrace::trainer
