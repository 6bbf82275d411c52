#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace millrace::model {

/// layer(x), whose inner values are not kept for the backward pass, but computed again there
/// (Chen et al., 2016). x must take a gradient.
at::Tensor recomputed(const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> layer);

} // namespace millrace::model
