#pragma once

// Part of the kernels: included by kernels_body.hpp only, once per instruction set.

#include "runtime/model/kernels_simd.hpp"

namespace millrace::model {
namespace {

/// Adds the bias, and what is there where that is wanted, and stores. T: a task of either kind.
template <int ROWS, int STRIPS, class T>
MILLRACE_INLINE void finish_tile(const T& t, int64_t row, int64_t strip,
                                 const vec (&sum)[ROWS][STRIPS]) {
#pragma GCC unroll 4
  for (int s = 0; s < STRIPS; ++s) {
    const int64_t column = (strip + s) * strip_width;
    const int64_t left = t.n - column;
    const bool whole = left >= strip_width;
    const vec bias = !t.bias ? vec{} : whole ? load(t.bias + column)
                                             : load_first(t.bias + column, left, 0);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      float* c = t.c + (row + r) * t.c_stride + column;
      vec y = sum[r][s] + bias;
      if (t.add_to_c)
        y = y + (whole ? load(c) : load_first(c, left, 0));
      if (whole)
        store(c, y);
      else
        store_first(c, left, y);
    }
  }
}

/// So far before its use in the innermost loop a weight is asked for.
constexpr int64_t steps_ahead = 12;

/// ROWS rows by STRIPS strips, all of k, in registers. `ahead`, where not null, is a strip that is
/// fetched meanwhile; else its own are, a little before their use.
template <int ROWS, int STRIPS>
void gemm_tile(const gemm_task& t, int64_t row, int64_t strip, const float* ahead) {
  vec sum[ROWS][STRIPS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
    for (int s = 0; s < STRIPS; ++s)
      sum[r][s] = vec{};
  const float* a = t.a + row * t.a_stride;
  const int64_t b_stride = t.strip_stride ? t.strip_stride : t.k * strip_width;
  const float* b = t.packed + strip * b_stride;
  for (int64_t k = 0; k < t.k; ++k) {
    if (ahead)
      __builtin_prefetch(ahead + k * strip_width, 0, 2);
    else
#pragma GCC unroll 4
      for (int s = 0; s < STRIPS; ++s)
        __builtin_prefetch(b + s * b_stride + (k + steps_ahead) * strip_width);
    vec w[STRIPS];
#pragma GCC unroll 4
    for (int s = 0; s < STRIPS; ++s)
      w[s] = load(b + s * b_stride + k * strip_width);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const vec x = all(a[r * t.a_stride + k]);
#pragma GCC unroll 4
      for (int s = 0; s < STRIPS; ++s)
        sum[r][s] = fma(x, w[s], sum[r][s]);
    }
  }
  finish_tile<ROWS, STRIPS>(t, row, strip, sum);
}

#if defined(__AVX512F__)
constexpr int most_strips = 3;
constexpr int tile_rows[4] = {0, 12, 12, 8}; // 24 accumulators of 32 registers
#elif defined(__AVX2__)
constexpr int most_strips = 1;
constexpr int tile_rows[4] = {0, 6, 6, 6}; // 12 accumulators of 16 registers
#else
constexpr int most_strips = 1;
constexpr int tile_rows[4] = {0, 2, 2, 2};
#endif

/// All rows by STRIPS strips. Where there are several tiles of rows only the first finds its strips in
/// memory, the others find them in the cache, so that waiting and computing would take turns: each
/// tile therefore fetches one of the strips that come next, of those before `last`.
template <int STRIPS>
void gemm_columns(const gemm_task& t, int64_t strip, int64_t last) {
  int64_t row = 0, next = t.rows > tile_rows[STRIPS] ? strip + STRIPS : last;
  const int64_t b_stride = t.strip_stride ? t.strip_stride : t.k * strip_width;
  const int64_t enough = next + STRIPS < last ? next + STRIPS : last;
  const auto ahead = [&] { return next < enough ? t.packed + next++ * b_stride : nullptr; };
  for (; row + tile_rows[STRIPS] <= t.rows; row += tile_rows[STRIPS])
    gemm_tile<tile_rows[STRIPS], STRIPS>(t, row, strip, ahead());
  if (tile_rows[STRIPS] > 8 && row + 8 <= t.rows) {
    gemm_tile<8, STRIPS>(t, row, strip, ahead());
    row += 8;
  }
  if (tile_rows[STRIPS] > 4 && row + 4 <= t.rows) {
    gemm_tile<4, STRIPS>(t, row, strip, ahead());
    row += 4;
  }
  for (; row < t.rows; ++row)
    gemm_tile<1, STRIPS>(t, row, strip, nullptr);
}

void gemm(const gemm_task& t, int64_t first, int64_t last) {
  for (int64_t strip = first; strip < last;) {
    const int64_t left = last - strip;
    if (most_strips == 3 && left >= 3 && left != 4) {
      gemm_columns<most_strips>(t, strip, last);
      strip += 3;
    } else if (most_strips == 3 && left >= 2) {
      gemm_columns<most_strips == 3 ? 2 : 1>(t, strip, last);
      strip += 2;
    } else {
      gemm_columns<1>(t, strip, last);
      strip += 1;
    }
  }
}

void pack(const float* w, int64_t w_stride, float* packed, int64_t n, int64_t k, int64_t first,
          int64_t last) {
  constexpr int64_t together = 64; // a block of 16 rows by these stays in the first cache
  for (int64_t strip = first; strip < last; ++strip) {
    float* to = packed + strip * k * strip_width;
    for (int64_t from = 0; from < k; from += together)
      for (int64_t j = 0; j < strip_width; ++j) {
        const int64_t row = strip * strip_width + j;
        const int64_t end = from + together < k ? from + together : k;
        for (int64_t i = from; i < end; ++i)
          to[i * strip_width + j] = row < n ? w[row * w_stride + i] : 0.0F;
      }
  }
}

void pack_columns(const float* w, int64_t w_stride, float* packed, int64_t n, int64_t k) {
  for (int64_t column = 0; column < n; column += strip_width) {
    const int64_t left = n - column;
    for (int64_t i = 0; i < k; ++i, packed += strip_width) {
      const float* from = w + i * w_stride + column;
      store(packed, left >= strip_width ? load(from) : load_first(from, left, 0));
    }
  }
}

} // namespace
} // namespace millrace::model
