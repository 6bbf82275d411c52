#pragma once

// Part of the kernels: included by kernels_body.hpp only, once per instruction set.

#include "runtime/model/kernels.hpp"

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace millrace::model {
namespace {

#define MILLRACE_INLINE inline __attribute__((always_inline))

// Sixteen floats, as one, two or four of the machine's registers.
#if defined(__AVX512F__)
constexpr int lanes = 16;
#elif defined(__AVX2__)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif
constexpr int parts = 16 / lanes;

typedef float reg __attribute__((vector_size(lanes * 4)));
typedef float reg_unaligned __attribute__((vector_size(lanes * 4), aligned(4), may_alias));
typedef int32_t ireg __attribute__((vector_size(lanes * 4)));

struct vec {
  reg part[parts];
};

MILLRACE_INLINE reg fma(reg a, reg b, reg c) {
#if defined(__AVX512F__)
  return (reg)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (reg)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}
// Not as 0 + x, which keeps the products' own units busy: the sum's sign counts, so that no compiler
// leaves it out.
MILLRACE_INLINE reg all_of(float x) {
#if defined(__AVX512F__)
  return (reg)_mm512_set1_ps(x);
#elif defined(__AVX2__)
  return (reg)_mm256_set1_ps(x);
#else
  return reg{x, x, x, x};
#endif
}

#define MILLRACE_EACH(expression)                                                                  \
  vec y;                                                                                           \
  _Pragma("GCC unroll 4") for (int i = 0; i < parts; ++i) y.part[i] = (expression);                \
  return y

MILLRACE_INLINE vec load(const float* p) {
  MILLRACE_EACH(*reinterpret_cast<const reg_unaligned*>(p + i * lanes));
}
MILLRACE_INLINE void store(float* p, const vec& v) {
#pragma GCC unroll 4
  for (int i = 0; i < parts; ++i)
    *reinterpret_cast<reg_unaligned*>(p + i * lanes) = v.part[i];
}
MILLRACE_INLINE vec all(float x) { MILLRACE_EACH(all_of(x)); }
MILLRACE_INLINE vec fma(const vec& a, const vec& b, const vec& c) {
  MILLRACE_EACH(fma(a.part[i], b.part[i], c.part[i]));
}
MILLRACE_INLINE vec operator+(const vec& a, const vec& b) { MILLRACE_EACH(a.part[i] + b.part[i]); }
MILLRACE_INLINE vec operator-(const vec& a, const vec& b) { MILLRACE_EACH(a.part[i] - b.part[i]); }
MILLRACE_INLINE vec operator*(const vec& a, const vec& b) { MILLRACE_EACH(a.part[i] * b.part[i]); }
MILLRACE_INLINE vec operator*(const vec& a, float b) { MILLRACE_EACH(a.part[i] * b); }
MILLRACE_INLINE vec operator/(const vec& a, const vec& b) { MILLRACE_EACH(a.part[i] / b.part[i]); }
MILLRACE_INLINE vec larger(const vec& a, const vec& b) {
  MILLRACE_EACH(a.part[i] > b.part[i] ? a.part[i] : b.part[i]);
}

// Down to a number in a fixed order, halving the width.
MILLRACE_INLINE float sum_of(const vec& v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v.part[0]);
#else
  float s[16];
  store(s, v);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i)
      s[i] += s[i + width];
  return s[0];
#endif
}

MILLRACE_INLINE float max_of(const vec& v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v.part[0]);
#else
  float s[16];
  store(s, v);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i)
      s[i] = s[i] > s[i + width] ? s[i] : s[i + width];
  return s[0];
#endif
}

/// eˣ to about 1 ulp for x ≤ 88; 0 below −87. Cody and Waite's reduction, Cephes' polynomial.
MILLRACE_INLINE reg exp_of(reg x) {
  const reg low = all_of(-87.0F), high = all_of(88.0F);
  const auto vanished = x < low; // −∞ too
  x = x < low ? low : x;
  x = x > high ? high : x;
  // Adding 1.5 · 2²³ rounds to an integer, which then lies in the low bits.
  const reg shifted = fma(x, all_of(1.44269504088896341F), all_of(12582912.0F));
  const ireg n = (ireg)shifted - (ireg)all_of(12582912.0F);
  const reg fn = shifted - all_of(12582912.0F);
  reg r = fma(fn, all_of(-0.693359375F), x);
  r = fma(fn, all_of(2.12194440e-4F), r);
  reg p = all_of(1.9875691500e-4F);
  p = fma(p, r, all_of(1.3981999507e-3F));
  p = fma(p, r, all_of(8.3334519073e-3F));
  p = fma(p, r, all_of(4.1665795894e-2F));
  p = fma(p, r, all_of(1.6666665459e-1F));
  p = fma(p, r, all_of(5.0000001201e-1F));
  p = fma(p, r * r, r + all_of(1.0F));
  const ireg power = (n + 127) << 23;
  p = p * (reg)power;
  return vanished ? reg{} : p;
}
MILLRACE_INLINE vec exp_of(const vec& x) { MILLRACE_EACH(exp_of(x.part[i])); }

/// x · sigmoid(x)
MILLRACE_INLINE vec silu_of(const vec& x) {
  MILLRACE_EACH(x.part[i] / (exp_of(-x.part[i]) + 1.0F));
}

MILLRACE_INLINE vec load_first(const float* p, int64_t n, float otherwise) {
  float buffer[16];
  for (int i = 0; i < 16; ++i)
    buffer[i] = i < n ? p[i] : otherwise;
  return load(buffer);
}

MILLRACE_INLINE void store_first(float* p, int64_t n, const vec& v) {
  float buffer[16];
  store(buffer, v);
  memcpy(p, buffer, static_cast<size_t>(n) * sizeof(float));
}

} // namespace
} // namespace millrace::model
