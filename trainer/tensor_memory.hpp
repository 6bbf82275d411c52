#pragma once

#include "runtime/tensor_view.hpp"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace millrace::trainer {

/// The memory of a contiguous fp32 tensor, for files and transfers. Valid as long as the tensor.
tensor_view view_of(std::string name, const at::Tensor& t);

/// Copies a view's contents to host memory, v.bytes() of it; and from there.
void copy_out(const tensor_view& v, std::byte* to);
void copy_in(const tensor_view& v, const std::byte* from);

/// Tensors in host memory: themselves where they are there, else copies made by take(), with their
/// memory kept for the next time.
class host_tensors {
public:
  /// Valid as long as this and until the next call.
  void take(const std::vector<tensor_view>& views);
  [[nodiscard]] const std::vector<tensor_view>& views() const { return views_; }

private:
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte[]> memory_;
  std::vector<tensor_view> views_;
};

} // namespace millrace::trainer
