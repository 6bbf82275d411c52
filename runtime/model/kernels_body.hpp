// The kernels themselves: included by one source file per instruction set, which defines
// MILLRACE_KERNELS (the table's name) and is compiled with that set's flags. Nothing from the
// standard library's templates may be used here: the linker could then pick a copy compiled for
// instructions that the machine lacks.

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
MILLRACE_INLINE reg all_of(float x) { return reg{} + x; }

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

// -- matrix product --------------------------------------------------------------------------------

/// ROWS rows by STRIPS strips, all of k, in registers.
template <int ROWS, int STRIPS>
void gemm_tile(const gemm_task& t, int64_t row, int64_t strip) {
  vec sum[ROWS][STRIPS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
    for (int s = 0; s < STRIPS; ++s)
      sum[r][s] = vec{};
  const float* a = t.a + row * t.a_stride;
  const float* b = t.packed + strip * t.k * strip_width;
  const int64_t b_stride = t.k * strip_width;
  for (int64_t k = 0; k < t.k; ++k) {
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

template <int STRIPS>
void gemm_columns(const gemm_task& t, int64_t strip) {
  int64_t row = 0;
  for (; row + tile_rows[STRIPS] <= t.rows; row += tile_rows[STRIPS])
    gemm_tile<tile_rows[STRIPS], STRIPS>(t, row, strip);
  if (tile_rows[STRIPS] > 8 && row + 8 <= t.rows) {
    gemm_tile<8, STRIPS>(t, row, strip);
    row += 8;
  }
  if (tile_rows[STRIPS] > 4 && row + 4 <= t.rows) {
    gemm_tile<4, STRIPS>(t, row, strip);
    row += 4;
  }
  for (; row < t.rows; ++row)
    gemm_tile<1, STRIPS>(t, row, strip);
}

void gemm(const gemm_task& t, int64_t first, int64_t last) {
  for (int64_t strip = first; strip < last;) {
    const int64_t left = last - strip;
    if (most_strips == 3 && left >= 3 && left != 4) {
      gemm_columns<most_strips>(t, strip);
      strip += 3;
    } else if (most_strips == 3 && left >= 2) {
      gemm_columns<most_strips == 3 ? 2 : 1>(t, strip);
      strip += 2;
    } else {
      gemm_columns<1>(t, strip);
      strip += 1;
    }
  }
}

void pack(const float* w, float* packed, int64_t n, int64_t k, int64_t first, int64_t last) {
  for (int64_t strip = first; strip < last; ++strip)
    for (int64_t j = 0; j < strip_width; ++j) {
      const int64_t row = strip * strip_width + j;
      float* to = packed + strip * k * strip_width + j;
      for (int64_t i = 0; i < k; ++i)
        to[i * strip_width] = row < n ? w[row * k + i] : 0.0F;
    }
}

// -- rows ------------------------------------------------------------------------------------------

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

void rope(float* x, int64_t heads, int64_t head_dim, const float* cos, const float* sin) {
  typedef float quad __attribute__((vector_size(16), aligned(4), may_alias));
#if defined(__AVX2__)
  typedef float oct __attribute__((vector_size(32), aligned(4), may_alias));
#endif
  const int64_t half = head_dim / 2;
  for (int64_t h = 0; h < heads; ++h, x += head_dim) {
    int64_t i = 0;
    const auto rotate = [&]<class T>(T*) {
      const auto read = [](const float* p) { return *reinterpret_cast<const T*>(p); };
      const T a = read(x + i), b = read(x + i + half), c = read(cos + i), s = read(sin + i);
      *reinterpret_cast<T*>(x + i) = a * c - b * s;
      *reinterpret_cast<T*>(x + i + half) = b * c + a * s;
    };
#if defined(__AVX2__)
    for (; i + 8 <= half; i += 8)
      rotate(static_cast<oct*>(nullptr));
#endif
    for (; i + 4 <= half; i += 4)
      rotate(static_cast<quad*>(nullptr));
    for (; i < half; ++i)
      rotate(static_cast<float*>(nullptr));
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

// -- attention -------------------------------------------------------------------------------------

/// Scores of HEADS query heads against BLOCKS blocks of 16 keys.
template <int HEADS, int BLOCKS>
MILLRACE_INLINE void score_blocks(const attention_task& t, int64_t head, int64_t block,
                                  int64_t padded) {
  vec sum[HEADS][BLOCKS];
  const float* k[BLOCKS];
#pragma GCC unroll 4
  for (int b = 0; b < BLOCKS; ++b) {
    k[b] = t.k_base + t.blocks[block + b] * t.block_stride;
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; ++h)
      sum[h][b] = vec{};
  }
  const float* q = t.q + head * t.head_dim;
  for (int64_t d = 0; d < t.head_dim; ++d) {
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; ++h) {
      const vec x = all(q[h * t.head_dim + d]);
#pragma GCC unroll 4
      for (int b = 0; b < BLOCKS; ++b)
        sum[h][b] = fma(x, load(k[b] + d * 16), sum[h][b]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < HEADS; ++h)
#pragma GCC unroll 4
    for (int b = 0; b < BLOCKS; ++b)
      store(t.scratch + (head + h) * padded + (block + b) * 16, sum[h][b] * t.scale);
}

template <int HEADS>
void score(const attention_task& t, int64_t head, int64_t padded) {
  constexpr int together = HEADS == 1 ? 4 : 2;
  const int64_t blocks = padded / 16;
  int64_t b = 0;
  for (; b + together <= blocks; b += together)
    score_blocks<HEADS, together>(t, head, b, padded);
  for (; b < blocks; ++b)
    score_blocks<HEADS, 1>(t, head, b, padded);
}

/// Turns scores into unnormalised weights, 0 past the last key; returns 1 / their sum.
float weigh(float* scores, int64_t keys, int64_t padded) {
  for (int64_t i = keys; i < padded; ++i)
    scores[i] = -INFINITY;
  vec most = load(scores);
  for (int64_t i = 16; i < padded; i += 16)
    most = larger(most, load(scores + i));
  const vec shift = all(max_of(most));
  vec total{};
  for (int64_t i = 0; i < padded; i += 16) {
    const vec w = exp_of(load(scores + i) - shift);
    store(scores + i, w);
    total = total + w;
  }
  return 1.0F / sum_of(total);
}

/// 16·VECS output numbers of one head from column `from` on. Four partial sums hide the latency;
/// which one a key goes to depends on its position only.
template <int VECS>
void mix(const attention_task& t, const float* weights, float inverse, int64_t head, int64_t from,
         int64_t value_width) {
  vec sum[4][VECS];
  for (int j = 0; j < 4; ++j)
    for (int v = 0; v < VECS; ++v)
      sum[j][v] = vec{};
  for (int64_t first = 0; first < t.keys; first += 16) {
    const float* values = t.v_base + t.blocks[first / 16] * t.block_stride + from;
    const int64_t here = t.keys - first < 16 ? t.keys - first : 16;
    int64_t i = 0;
    for (; i + 4 <= here; i += 4)
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const vec w = all(weights[first + i + j]);
#pragma GCC unroll 4
        for (int v = 0; v < VECS; ++v)
          sum[j][v] = fma(w, load(values + (i + j) * value_width + v * 16), sum[j][v]);
      }
#pragma GCC unroll 4
    for (int j = 0; j < 3; ++j)
      if (i + j < here) {
        const vec w = all(weights[first + i + j]);
#pragma GCC unroll 4
        for (int v = 0; v < VECS; ++v)
          sum[j][v] = fma(w, load(values + (i + j) * value_width + v * 16), sum[j][v]);
      }
  }
  float* out = t.out + head * t.head_dim + from;
  const int64_t left = t.head_dim - from;
  for (int v = 0; v < VECS; ++v) {
    const vec y = ((sum[0][v] + sum[1][v]) + (sum[2][v] + sum[3][v])) * inverse;
    if (left - v * 16 >= 16)
      store(out + v * 16, y);
    else
      store_first(out + v * 16, left - v * 16, y);
  }
}

void attend(const attention_task& t) {
  const int64_t padded = (t.keys + 15) / 16 * 16;
  const int64_t value_width = (t.head_dim + 15) / 16 * 16;
  int64_t h = 0;
  for (; h + 4 <= t.heads; h += 4)
    score<4>(t, h, padded);
  if (h + 2 <= t.heads) {
    score<2>(t, h, padded);
    h += 2;
  }
  if (h < t.heads)
    score<1>(t, h, padded);
  for (h = 0; h < t.heads; ++h) {
    float* weights = t.scratch + h * padded;
    const float inverse = weigh(weights, t.keys, padded);
    int64_t from = 0;
    for (; from + 64 <= value_width; from += 64)
      mix<4>(t, weights, inverse, h, from, value_width);
    if (from + 32 <= value_width) {
      mix<2>(t, weights, inverse, h, from, value_width);
      from += 32;
    }
    if (from < value_width)
      mix<1>(t, weights, inverse, h, from, value_width);
  }
}

// -- sampling --------------------------------------------------------------------------------------

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

extern const kernel_table MILLRACE_KERNELS;
const kernel_table MILLRACE_KERNELS{MILLRACE_KERNELS_NAME, gemm, pack, rms_norm, rope, attend,
                                    swiglu, maximum, exponentials};

} // namespace millrace::model
