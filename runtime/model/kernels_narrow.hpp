#pragma once

// Part of the kernels: included by kernels_body.hpp only, once per instruction set.
//
// Products with weights of two bytes (bf16) and one (8-bit integers). A 32-bit lane of a packed row
// holds 2 or 4 consecutive k of one output, as the machine's instructions for them want it; where
// the machine has none, the same sums are made of wider ones.

#include "runtime/model/kernels_gemm.hpp"

namespace millrace::model {
namespace {

struct ivec {
  ireg part[parts];
};

typedef int32_t ireg_unaligned __attribute__((vector_size(lanes * 4), aligned(4), may_alias));
typedef uint32_t ureg __attribute__((vector_size(lanes * 4)));

MILLRACE_INLINE ivec load_lanes(const void* p) {
  ivec y;
#pragma GCC unroll 4
  for (int i = 0; i < parts; ++i)
    y.part[i] = *(reinterpret_cast<const ireg_unaligned*>(p) + i);
  return y;
}
MILLRACE_INLINE int32_t word_at(const void* p) {
  int32_t x;
  memcpy(&x, p, sizeof x);
  return x;
}
MILLRACE_INLINE float float_at(const void* p) {
  float x;
  memcpy(&x, p, sizeof x);
  return x;
}

// -- bf16 ------------------------------------------------------------------------------------------

#if defined(__AVX512BF16__)
constexpr int64_t bf16_pair_bytes = 4; // activations: two bf16
#else
constexpr int64_t bf16_pair_bytes = 8; // two floats, rounded to bf16
#endif

/// sum + w.low · a[0] + w.high · a[1]
MILLRACE_INLINE vec add_pairs(const vec& sum, const ivec& w, const std::byte* a) {
  vec y;
#if defined(__AVX512BF16__)
  y.part[0] = (reg)_mm512_dpbf16_ps((__m512)sum.part[0], (__m512bh)w.part[0],
                                    (__m512bh)_mm512_set1_epi32(word_at(a)));
#else
  const reg low = all_of(float_at(a)), high = all_of(float_at(a + 4));
#pragma GCC unroll 4
  for (int i = 0; i < parts; ++i) {
    y.part[i] = fma((reg)(w.part[i] << 16), low, sum.part[i]);
    y.part[i] = fma((reg)(w.part[i] & (ireg{} + static_cast<int32_t>(0xFFFF0000))), high,
                    y.part[i]);
  }
#endif
  return y;
}

template <int ROWS, int STRIPS>
void bf16_tile(const narrow_gemm_task& t, int64_t row, int64_t strip) {
  vec sum[ROWS][STRIPS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
    for (int s = 0; s < STRIPS; ++s)
      sum[r][s] = vec{};
  const int64_t pairs = (t.k + 1) / 2, b_stride = pairs * 64;
  const std::byte* a = t.a + row * t.a_stride;
  const std::byte* b = t.packed + strip * b_stride;
  for (int64_t p = 0; p < pairs; ++p) {
    ivec w[STRIPS];
#pragma GCC unroll 4
    for (int s = 0; s < STRIPS; ++s)
      w[s] = load_lanes(b + s * b_stride + p * 64);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int s = 0; s < STRIPS; ++s)
        sum[r][s] = add_pairs(sum[r][s], w[s], a + r * t.a_stride + p * bf16_pair_bytes);
  }
  finish_tile<ROWS, STRIPS>(t, row, strip, sum);
}

MILLRACE_INLINE uint32_t bf16_bits(float x) {
  const auto bits = static_cast<uint32_t>(word_at(&x));
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U)
    return (bits >> 16 | 0x40U) & 0xFFFFU;
  return (bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16;
}

void round_rows(const float* x, int64_t x_stride, std::byte* out, int64_t out_stride, int64_t rows,
                int64_t k) {
  for (int64_t r = 0; r < rows; ++r, x += x_stride, out += out_stride)
    for (int64_t i = 0; i < (k + 1) / 2 * 2; ++i) {
      const uint32_t bits = i < k ? bf16_bits(x[i]) : 0;
#if defined(__AVX512BF16__)
      const auto half = static_cast<uint16_t>(bits);
      memcpy(out + i * 2, &half, 2);
#else
      const uint32_t wide = bits << 16;
      memcpy(out + i * 4, &wide, 4);
#endif
    }
}

// -- 8-bit integers --------------------------------------------------------------------------------

#if defined(__AVX512VNNI__)
constexpr int64_t i8_quad_bytes = 4; // activations: four int8
#else
constexpr int64_t i8_quad_bytes = 8; // int16: the even two of four, then the odd two
#endif

/// sum + Σ of four products, exact. w: unsigned bytes; a: four numbers of a row.
MILLRACE_INLINE ivec add_quads(const ivec& sum, const ivec& w, const std::byte* a) {
  ivec y;
#if defined(__AVX512VNNI__)
  y.part[0] = (ireg)_mm512_dpbusd_epi32((__m512i)sum.part[0], (__m512i)w.part[0],
                                        _mm512_set1_epi32(word_at(a)));
#else
  const int32_t even = word_at(a), odd = word_at(a + 4);
#pragma GCC unroll 4
  for (int i = 0; i < parts; ++i) {
    const ireg mask = ireg{} + 0x00FF00FF;
    const ireg w_even = w.part[i] & mask, w_odd = (ireg)((ureg)w.part[i] >> 8) & mask;
#if defined(__AVX512BW__)
    y.part[i] = sum.part[i]
                + (ireg)_mm512_madd_epi16((__m512i)w_even, _mm512_set1_epi32(even))
                + (ireg)_mm512_madd_epi16((__m512i)w_odd, _mm512_set1_epi32(odd));
#elif defined(__AVX2__)
    y.part[i] = sum.part[i]
                + (ireg)_mm256_madd_epi16((__m256i)w_even, _mm256_set1_epi32(even))
                + (ireg)_mm256_madd_epi16((__m256i)w_odd, _mm256_set1_epi32(odd));
#else
    const auto first = [](int32_t pair) { return static_cast<int32_t>(static_cast<int16_t>(pair)); };
    y.part[i] = sum.part[i] + (w_even & 0xFFFF) * first(even) + (w_even >> 16) * (even >> 16)
                + (w_odd & 0xFFFF) * first(odd) + (w_odd >> 16) * (odd >> 16);
#endif
  }
#endif
  return y;
}

MILLRACE_INLINE ivec all_lanes(int32_t x) {
  ivec y;
#pragma GCC unroll 4
  for (int i = 0; i < parts; ++i)
    y.part[i] = ireg{} + x;
  return y;
}
MILLRACE_INLINE vec to_floats(const ivec& x) {
  MILLRACE_EACH(__builtin_convertvector(x.part[i], reg));
}

constexpr int64_t i8_groups(int64_t k) { return (k + i8_group - 1) / i8_group; }
constexpr int64_t i8_group_bytes = i8_group / 4 * i8_quad_bytes;

// A row of activations: groups of numbers, then a scale for each group, then −128 · Σ of each group,
// as the weights are stored 128 too large.
template <int ROWS, int STRIPS>
void i8_tile(const narrow_gemm_task& t, int64_t row, int64_t strip) {
  vec total[ROWS][STRIPS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
    for (int s = 0; s < STRIPS; ++s)
      total[r][s] = vec{};
  const int64_t groups = i8_groups(t.k), b_stride = groups * i8_group * strip_width;
  const std::byte* a = t.a + row * t.a_stride;
  const std::byte* b = t.packed + strip * b_stride;
  for (int64_t g = 0; g < groups; ++g) {
    const std::byte* scales = a + groups * i8_group_bytes + g * 4;
    ivec sum[ROWS][STRIPS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int s = 0; s < STRIPS; ++s)
        sum[r][s] = all_lanes(word_at(scales + r * t.a_stride + groups * 4));
#pragma GCC unroll 2
    for (int64_t q = 0; q < i8_group / 4; ++q) {
      ivec w[STRIPS];
#pragma GCC unroll 4
      for (int s = 0; s < STRIPS; ++s)
        w[s] = load_lanes(b + s * b_stride + (g * (i8_group / 4) + q) * 64);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
        for (int s = 0; s < STRIPS; ++s)
          sum[r][s] = add_quads(sum[r][s], w[s],
                                a + r * t.a_stride + g * i8_group_bytes + q * i8_quad_bytes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const vec scale = all(float_at(scales + r * t.a_stride));
#pragma GCC unroll 4
      for (int s = 0; s < STRIPS; ++s)
        total[r][s] = fma(to_floats(sum[r][s]), scale, total[r][s]);
    }
  }
#pragma GCC unroll 4
  for (int s = 0; s < STRIPS; ++s) {
    const vec scale = load(t.scales + (strip + s) * strip_width);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
      total[r][s] = total[r][s] * scale;
  }
  finish_tile<ROWS, STRIPS>(t, row, strip, total);
}

/// Numbers of one group to whole ones within ±127 at `to`; returns their sum.
MILLRACE_INLINE int32_t quantise_group(const float* x, float inverse, std::byte* to) {
  alignas(64) int32_t whole[i8_group];
  const reg magic = all_of(12582912.0F); // 1.5 · 2²³: the integer nearest lies in the low bits
  for (int64_t i = 0; i < i8_group; i += lanes) {
    reg v;
    memcpy(&v, x + i, sizeof v);
    const ireg q = (ireg)(v * inverse + magic) - (ireg)magic;
    memcpy(whole + i, &q, sizeof q);
  }
  int32_t sum = 0;
  for (int64_t i = 0; i < i8_group; ++i)
    sum += whole[i];
#if defined(__AVX512VNNI__)
  int8_t bytes[i8_group];
  for (int64_t i = 0; i < i8_group; ++i)
    bytes[i] = static_cast<int8_t>(whole[i]);
#else
  int16_t bytes[i8_group];
  for (int64_t i = 0; i < i8_group; i += 4) {
    bytes[i] = static_cast<int16_t>(whole[i]);
    bytes[i + 1] = static_cast<int16_t>(whole[i + 2]);
    bytes[i + 2] = static_cast<int16_t>(whole[i + 1]);
    bytes[i + 3] = static_cast<int16_t>(whole[i + 3]);
  }
#endif
  memcpy(to, bytes, sizeof bytes);
  return sum;
}

void quantise_rows(const float* x, int64_t x_stride, std::byte* out, int64_t out_stride,
                   int64_t rows, int64_t k) {
  const int64_t groups = i8_groups(k);
  for (int64_t r = 0; r < rows; ++r, x += x_stride, out += out_stride) {
    for (int64_t g = 0; g < groups; ++g) {
      alignas(64) float group[i8_group];
      const int64_t left = k - g * i8_group, here = left < i8_group ? left : i8_group;
      memcpy(group, x + g * i8_group, static_cast<size_t>(here) * sizeof(float));
      for (int64_t i = here; i < i8_group; ++i)
        group[i] = 0;
      vec most{}, strange{}; // strange: NaN when a number is not finite, which must not be hidden
      for (int64_t i = 0; i < i8_group; i += 16) {
        const vec v = load(group + i);
        most = larger(most, larger(v, vec{} - v));
        strange = fma(v, vec{}, strange);
      }
      const float largest = max_of(most);
      const float scale = largest / 127.0F + sum_of(strange);
      const float inverse = largest > 1e-30F ? 127.0F / largest : 0.0F; // else it may be infinite
      const int32_t sum = quantise_group(group, inverse, out + g * i8_group_bytes);
      const int32_t correction = -128 * sum;
      std::byte* scales = out + groups * i8_group_bytes + g * 4;
      memcpy(scales, &scale, 4);
      memcpy(scales + groups * 4, &correction, 4);
    }
  }
}

// -- both ------------------------------------------------------------------------------------------

#if defined(__AVX512F__)
constexpr int narrow_strips = 2;
constexpr int bf16_rows = 12, i8_rows = 6;
#elif defined(__AVX2__)
constexpr int narrow_strips = 1;
constexpr int bf16_rows = 4, i8_rows = 2;
#else
constexpr int narrow_strips = 1;
constexpr int bf16_rows = 2, i8_rows = 1;
#endif

struct bf16_product {
  static constexpr int rows = bf16_rows;
  template <int ROWS, int STRIPS>
  static void tile(const narrow_gemm_task& t, int64_t row, int64_t strip) {
    bf16_tile<ROWS, STRIPS>(t, row, strip);
  }
};
struct i8_product {
  static constexpr int rows = i8_rows;
  template <int ROWS, int STRIPS>
  static void tile(const narrow_gemm_task& t, int64_t row, int64_t strip) {
    i8_tile<ROWS, STRIPS>(t, row, strip);
  }
};

/// As many tiles of ROWS as fit from `row` on, then smaller ones.
template <class P, int STRIPS, int ROWS>
void narrow_rows(const narrow_gemm_task& t, int64_t row, int64_t strip) {
  for (; row + ROWS <= t.rows; row += ROWS)
    P::template tile<ROWS, STRIPS>(t, row, strip);
  if constexpr (ROWS > 1)
    if (row < t.rows)
      narrow_rows<P, STRIPS, (ROWS > 8 ? 8 : ROWS > 4 ? 4 : ROWS - 1)>(t, row, strip);
}

template <class P>
void narrow_gemm(const narrow_gemm_task& t, int64_t first, int64_t last) {
  int64_t strip = first;
  for (; strip + narrow_strips <= last; strip += narrow_strips)
    narrow_rows<P, narrow_strips, P::rows>(t, 0, strip);
  for (; strip < last; ++strip)
    narrow_rows<P, 1, P::rows>(t, 0, strip);
}

} // namespace
} // namespace millrace::model
