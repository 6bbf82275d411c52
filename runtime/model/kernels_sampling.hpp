#pragma once

// Part of the kernels: included by kernels_body.hpp only, once per instruction set.

#include "runtime/model/kernels_simd.hpp"

namespace millrace::model {
namespace {

float maximum(const float* x, int64_t n) {
  vec most = all(-INFINITY);
  vec sum{}; // of zeros, unless something is NaN or infinite
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    most = larger(most, load(x + i));
    sum = fma(load(x + i), all(0.0F), sum);
  }
  if (i < n) {
    most = larger(most, load_first(x + i, n - i, -INFINITY));
    sum = fma(load_first(x + i, n - i, 0), all(0.0F), sum);
  }
  return sum_of(sum) == 0 ? max_of(most) : NAN;
}

void exponentials(const float* x, float* w, double* sums, int64_t n, float shift, float scale) {
  for (int64_t first = 0; first < n; first += sum_width) {
    const int64_t end = n - first < sum_width ? n : first + sum_width;
    vec sum{};
    int64_t i = first;
    for (; i + 16 <= end; i += 16) {
      const vec e = exp_of((load(x + i) - all(shift)) * scale);
      store(w + i, e);
      sum = sum + e;
    }
    if (i < end) {
      const vec e = exp_of((load_first(x + i, end - i, -INFINITY) - all(shift)) * scale);
      store_first(w + i, end - i, e);
      sum = sum + e;
    }
    *sums++ = static_cast<double>(sum_of(sum));
  }
}

} // namespace
} // namespace millrace::model
