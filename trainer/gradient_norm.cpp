#include "trainer/gradient_norm.hpp"

#include "runtime/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>

namespace millrace::trainer {

double sum_of_squares(const at::Tensor& gradient) {
  ensure(gradient.dim() == 1, "gradients are summed from a flat buffer");
  at::NoGradGuard no_grad;
  constexpr std::int64_t piece = 1 << 12;
  const auto pieces = gradient.numel() / piece;
  double squares = 0;
  auto add = [&](const at::Tensor& norms) {
    auto norm = at::linalg_vector_norm(norms, 2, at::OptionalIntArrayRef{}, false, at::kDouble)
                  .item<double>();
    squares += norm * norm;
  };
  if (pieces > 0)
    add(at::linalg_vector_norm(gradient.narrow(0, 0, pieces * piece).view({pieces, piece}), 2, 1));
  if (const auto rest = gradient.numel() - pieces * piece; rest > 0)
    add(gradient.narrow(0, pieces * piece, rest));
  return squares;
}

} // namespace millrace::trainer
