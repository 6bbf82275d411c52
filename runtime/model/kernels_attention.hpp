#pragma once

// Part of the kernels: included by kernels_body.hpp only, once per instruction set.

#include "runtime/model/kernels_simd.hpp"

namespace millrace::model {
namespace {

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

float softmax(float* scores, int64_t keys, int64_t padded, float scale) {
  for (int64_t i = keys; i < padded; ++i)
    scores[i] = -INFINITY;
  vec most = load(scores);
  for (int64_t i = 16; i < padded; i += 16)
    most = larger(most, load(scores + i));
  const float top = max_of(most);
  vec total{};
  for (int64_t i = 0; i < padded; i += 16) {
    const vec w = exp_of((load(scores + i) - all(top)) * scale);
    store(scores + i, w);
    total = total + w;
  }
  const float sum = sum_of(total);
  for (int64_t i = 0; i < padded; i += 16)
    store(scores + i, load(scores + i) * (1.0F / sum));
  return top * scale + logf(sum);
}

void softmax_again(float* scores, int64_t keys, int64_t padded, float scale, float log_sum) {
  for (int64_t i = keys; i < padded; ++i)
    scores[i] = -INFINITY;
  for (int64_t i = 0; i < padded; i += 16)
    store(scores + i, exp_of(load(scores + i) * scale - all(log_sum)));
}

void softmax_backward(const float* p, float* g, int64_t padded, float delta, float scale) {
  for (int64_t i = 0; i < padded; i += 16)
    store(g + i, load(p + i) * (load(g + i) - all(delta)) * scale);
}

} // namespace
} // namespace millrace::model
