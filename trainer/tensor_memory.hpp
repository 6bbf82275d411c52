#pragma once

#include "runtime/tensor_view.hpp"

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace millrace::trainer {

/// The memory of a contiguous fp32 tensor on the host, for files. Valid as long as the tensor.
inline tensor_view view_of(std::string name, const at::Tensor& t) {
  return {std::move(name), dtype::f32, t.sizes().vec(),
          reinterpret_cast<std::byte*>(t.data_ptr<float>()), memory_kind::host};
}

} // namespace millrace::trainer
