#pragma once

// Part of the kernels: included by kernels_body.hpp only, once per instruction set.

#include "runtime/model/kernels_simd.hpp"

namespace millrace::model {
namespace {

void rms_norm(const float* x, int64_t x_stride, const float* weight, float* y, int64_t y_stride,
              int64_t rows, int64_t d, float eps) {
  for (int64_t r = 0; r < rows; ++r, x += x_stride, y += y_stride) {
    vec squares{};
    int64_t i = 0;
    for (; i + 16 <= d; i += 16)
      squares = fma(load(x + i), load(x + i), squares);
    if (i < d) {
      const vec tail = load_first(x + i, d - i, 0);
      squares = fma(tail, tail, squares);
    }
    const float scale = 1.0F / sqrtf(sum_of(squares) / static_cast<float>(d) + eps);
    for (i = 0; i + 16 <= d; i += 16)
      store(y + i, load(x + i) * scale * load(weight + i));
    for (; i < d; ++i)
      y[i] = x[i] * scale * weight[i];
  }
}

float dot(const float* a, const float* b, int64_t n) {
  vec sum{};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    sum = fma(load(a + i), load(b + i), sum);
  if (i < n)
    sum = fma(load_first(a + i, n - i, 0), load_first(b + i, n - i, 0), sum);
  return sum_of(sum);
}

void rms_norm_backward(const float* x, const float* weight, const float* gy, float* gx, float* gw,
                       int64_t rows, int64_t d, float eps) {
  for (int64_t r = 0; r < rows; ++r, x += d, gy += d, gx += d) {
    const float scale = 1.0F / sqrtf(dot(x, x, d) / static_cast<float>(d) + eps);
    vec products{};
    int64_t i = 0;
    for (; i + 16 <= d; i += 16)
      products = fma(load(gy + i) * load(weight + i), load(x + i), products);
    float sum = sum_of(products);
    for (int64_t j = i; j < d; ++j)
      sum += gy[j] * weight[j] * x[j];
    // ∂/∂x of x·s·w, with s depending on every x: s·(w·g − x·s²·mean(w·g·x)).
    const float shared = scale * scale * sum / static_cast<float>(d);
    for (i = 0; i + 16 <= d; i += 16) {
      const vec g = load(gy + i), v = load(x + i);
      store(gw + i, fma(g, v * scale, load(gw + i)));
      store(gx + i, (g * load(weight + i) - v * shared) * scale);
    }
    for (; i < d; ++i) {
      gw[i] += gy[i] * x[i] * scale;
      gx[i] = (gy[i] * weight[i] - x[i] * shared) * scale;
    }
  }
}

/// Elements i … of one head, as many as T holds. memcpy, as T wants more alignment than x has.
template <class T>
MILLRACE_INLINE void rotate(float* x, int64_t i, int64_t half, const float* cos, const float* sin) {
  T a, b, c, s;
  memcpy(&a, x + i, sizeof(T));
  memcpy(&b, x + i + half, sizeof(T));
  memcpy(&c, cos + i, sizeof(T));
  memcpy(&s, sin + i, sizeof(T));
  const T first = a * c - b * s, second = b * c + a * s;
  memcpy(x + i, &first, sizeof(T));
  memcpy(x + i + half, &second, sizeof(T));
}

typedef float quad __attribute__((vector_size(16)));

void rope(float* x, int64_t heads, int64_t head_dim, const float* cos, const float* sin) {
  const int64_t half = head_dim / 2;
  for (int64_t h = 0; h < heads; ++h, x += head_dim) {
    int64_t i = 0;
    for (; i + lanes <= half; i += lanes)
      rotate<reg>(x, i, half, cos, sin);
    for (; i + 4 <= half; i += 4)
      rotate<quad>(x, i, half, cos, sin);
    for (; i < half; ++i)
      rotate<float>(x, i, half, cos, sin);
  }
}

void swiglu(const float* gate_up, int64_t stride, float* out, int64_t out_stride, int64_t rows,
            int64_t ff) {
  for (int64_t r = 0; r < rows; ++r, gate_up += stride, out += out_stride) {
    int64_t i = 0;
    for (; i + 16 <= ff; i += 16) {
      const vec g = load(gate_up + i);
      store(out + i, silu_of(g) * load(gate_up + ff + i));
    }
    if (i < ff) {
      const vec g = load_first(gate_up + i, ff - i, 0);
      store_first(out + i, ff - i, silu_of(g) * load_first(gate_up + ff + i, ff - i, 0));
    }
  }
}

/// Gradients of silu(g) · u.
MILLRACE_INLINE void swiglu_gradients(const vec& g, const vec& u, const vec& out, vec& to_g,
                                      vec& to_u) {
#pragma GCC unroll 4
  for (int i = 0; i < parts; ++i) {
    const reg sigmoid = 1.0F / (exp_of(-g.part[i]) + 1.0F);
    to_u.part[i] = out.part[i] * (g.part[i] * sigmoid);
    to_g.part[i] = out.part[i] * u.part[i] * sigmoid * (1.0F + g.part[i] * (1.0F - sigmoid));
  }
}

void swiglu_backward(const float* gate_up, const float* g_out, float* g_gate_up, int64_t rows,
                     int64_t ff) {
  for (int64_t r = 0; r < rows; ++r, gate_up += 2 * ff, g_gate_up += 2 * ff, g_out += ff)
    for (int64_t i = 0; i < ff; i += 16) {
      const int64_t left = ff - i;
      vec to_g, to_u;
      if (left >= 16) {
        swiglu_gradients(load(gate_up + i), load(gate_up + ff + i), load(g_out + i), to_g, to_u);
        store(g_gate_up + i, to_g);
        store(g_gate_up + ff + i, to_u);
      } else {
        swiglu_gradients(load_first(gate_up + i, left, 0), load_first(gate_up + ff + i, left, 0),
                         load_first(g_out + i, left, 0), to_g, to_u);
        store_first(g_gate_up + i, left, to_g);
        store_first(g_gate_up + ff + i, left, to_u);
      }
    }
}

} // namespace
} // namespace millrace::model
