#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>

namespace millrace::model {

/// a [n, k] · b [k, m] → [n, m] fp32. Of narrower numbers on a CUDA device the sums are never rounded to
/// their type, where libtorch has such a product; elsewhere they are made fp32 first.
inline at::Tensor wide_product(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cuda() && a.scalar_type() != at::kFloat) {
    // Not in every version of libtorch; a generic lambda so that the older ones compile.
    const auto product = [](const auto& x, const auto& y) {
      if constexpr (requires { at::mm(x, y, at::kFloat); })
        return at::mm(x, y, at::kFloat);
      else
        return at::mm(x, y).to(at::kFloat);
    };
    return product(a, b);
  }
  return at::mm(a.to(at::kFloat), b.to(at::kFloat));
}

} // namespace millrace::model
