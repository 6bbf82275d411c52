#pragma once

#include <ATen/core/Tensor.h>

namespace millrace::trainer {

/// The sum of squares of `gradient`, [n] in fp32 or narrower; not finite where an element isn't. Long
/// vectors are summed in pieces, and those in double precision: one fp32 sum over millions of elements
/// is off by some 1e-4 of itself, and by another amount on every partition of them over ranks.
double sum_of_squares(const at::Tensor& gradient);

} // namespace millrace::trainer
