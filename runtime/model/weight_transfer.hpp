#pragma once

#include "runtime/tensor_view.hpp"

#include <filesystem>
#include <span>
#include <vector>

namespace at {
class Tensor;
}

namespace millrace::model {

/// The tensor that a view is of: the same memory, wherever it is. fp32, bf16 or fp16; E4M3 as bytes,
/// for moving. \throws invariant_error for other types
at::Tensor tensor_of(const tensor_view& v);

/// Copies weights by name, from any memory into any other (host, CUDA), between fp32, bf16 and fp16,
/// and from these into E4M3: then the scales, one per row, go into the tensor of its name and
/// "_scale". \throws invariant_error where a tensor is missing or has another shape
void transfer_weights(std::span<const tensor_view> from, std::span<const tensor_view> to);

/// load_checkpoint() into tensors in any memory, and E4M3 too. Through host memory, a part at a time.
void load_weights(const std::filesystem::path& folder, const std::vector<tensor_view>& parameters);

} // namespace millrace::model
