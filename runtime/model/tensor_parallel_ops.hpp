#pragma once

// What the transformer does, differentiably, over the ranks of a tensor-parallel group. Without a
// group nothing happens.

#include "runtime/model/tensor_parallel.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace c10 {
struct IValue;
}

namespace millrace::model {

using group_pointer = std::shared_ptr<const tensor_group>;

/// A group as an operation notes it for its backward pass, and what is noted.
c10::IValue held(const group_pointer& group);
const tensor_group& group_in(const c10::IValue& held);

/// x as it is; its gradient is summed over the ranks. Before what is split by outputs. Where the
/// ranks share the tokens (tensor_group::sequence), x is this rank's and the result all `tokens`.
at::Tensor enter_group(const at::Tensor& x, const group_pointer& group, std::int64_t tokens);

/// The ranks' sum; its gradient is passed on as it is. After what is split by inputs. Where the ranks
/// share the tokens, this rank's of it.
at::Tensor leave_group(const at::Tensor& x, const group_pointer& group);

/// Where the ranks share the tokens: all `tokens` of what each rank has of x. Every rank's gradient is
/// that of all of it, and keeps its own rows. Elsewhere x.
at::Tensor collect_tokens(const at::Tensor& x, const group_pointer& group, std::int64_t tokens);

} // namespace millrace::model
