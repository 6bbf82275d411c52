#pragma once

// The arithmetic of CPU generation, compiled once per instruction set and chosen at run time.
//
// Every kernel computes a row (a token) by the same operations in the same order whatever other
// rows are beside it: an output element is one accumulator over ascending k, and attention walks
// the keys in ascending order. So a token's log-prob is bitwise the same in a batch of 1 or 100, in
// prefill or decode, after a preemption or without one.

#include <cstddef>
#include <cstdint>

namespace millrace::model {

/// Columns of a packed matrix that lie together.
inline constexpr std::int64_t strip_width = 16;

/// Numbers that one partial sum of exponentials() covers.
inline constexpr std::int64_t sum_width = 1024;

constexpr std::int64_t strips_for(std::int64_t columns) {
  return (columns + strip_width - 1) / strip_width;
}

/// c[rows, n] (+)= a[rows, k] · Wᵀ (+ bias). W is [n, k] packed into strips of 16 outputs:
/// [strips][k][16], the last padded with zeros.
struct gemm_task {
  const float* a = nullptr;
  std::int64_t a_stride = 0;
  const float* packed = nullptr;
  const float* bias = nullptr; ///< [n], or null
  float* c = nullptr;
  std::int64_t c_stride = 0;
  std::int64_t rows = 0, k = 0, n = 0;
  bool add_to_c = false;
  std::int64_t strip_stride = 0; ///< floats from a strip to the next; 0: 16·k
};

/// Along k: how many 8-bit activations share a scale.
inline constexpr std::int64_t i8_group = 64;

/// The same with weights of 16 or 8 bits, computed in that precision: activations are rounded too
/// (round_rows, quantise_rows), sums are fp32 or exact integers.
///
/// bf16: [strips][k/2][16][2]. 8 bits: [strips][k/4][16][4] as q + 128, with k filled up to a multiple
/// of 64, and a scale per output; the activations of a row have one for each 64.
struct narrow_gemm_task {
  const std::byte* a = nullptr;
  std::int64_t a_stride = 0; ///< bytes
  const std::byte* packed = nullptr;
  const float* scales = nullptr; ///< [16·strips]; null for bf16
  const float* bias = nullptr;   ///< [n], or null
  float* c = nullptr;
  std::int64_t c_stride = 0;
  std::int64_t rows = 0, k = 0, n = 0;
  bool add_to_c = false;
};

/// Bytes that a row of rounded activations takes at most, for bf16 and for 8 bits.
constexpr std::int64_t narrow_row_bytes(std::int64_t k) {
  return (k + i8_group - 1) / i8_group * (i8_group * 4 + 8);
}

/// Attention of one token's query heads that share a key head over the token's own past.
struct attention_task {
  const float* q = nullptr;  ///< [heads, head_dim], rotated
  float* out = nullptr;      ///< [heads, head_dim]
  std::int64_t heads = 0;    ///< query heads of this key head
  std::int64_t head_dim = 0;
  float scale = 1;
  const std::int32_t* blocks = nullptr; ///< block table of the sequence
  std::int64_t keys = 0;     ///< the token's own included
  const float* k_base = nullptr; ///< this key head in block 0: [head_dim][16 tokens]
  const float* v_base = nullptr; ///< likewise: [16 tokens][head_dim padded to 16]
  std::int64_t block_stride = 0; ///< floats from a block to the next
  float* scratch = nullptr;  ///< heads · (keys rounded up to 16)
};

struct kernel_table {
  const char* name;
  /// Strips [first, last) of the product.
  void (*gemm)(const gemm_task& task, std::int64_t first, std::int64_t last);
  /// Packs rows [16·first, 16·last) of W [n, k].
  void (*pack)(const float* w, std::int64_t w_stride, float* packed, std::int64_t n, std::int64_t k,
               std::int64_t first, std::int64_t last);
  /// Packs Wᵀ, given as [k, n] row-major.
  void (*pack_columns)(const float* w, std::int64_t w_stride, float* packed, std::int64_t n,
                       std::int64_t k);
  /// Strips [first, last) of a product in bf16.
  void (*gemm_bf16)(const narrow_gemm_task& task, std::int64_t first, std::int64_t last);
  /// Likewise of 8-bit integers.
  void (*gemm_i8)(const narrow_gemm_task& task, std::int64_t first, std::int64_t last);
  /// Rows of activations as gemm_bf16 wants them; strides in floats and in bytes.
  void (*round_rows)(const float* x, std::int64_t x_stride, std::byte* out, std::int64_t out_stride,
                     std::int64_t rows, std::int64_t k);
  /// As gemm_i8 does.
  void (*quantise_rows)(const float* x, std::int64_t x_stride, std::byte* out,
                        std::int64_t out_stride, std::int64_t rows, std::int64_t k);
  /// Packs rows [16·first, 16·last) of n rows of `row_bytes` bytes, filled up with zeros to
  /// `lanes` 32-bit lanes, each exclusive-or'ed with `flip`.
  void (*pack_lanes)(const std::byte* w, std::int64_t row_bytes, std::byte* packed, std::int64_t n,
                     std::int64_t lanes, std::uint32_t flip, std::int64_t first,
                     std::int64_t last);
  /// y[rows, d] = x / √(mean x² + eps) · weight. y may be x.
  void (*rms_norm)(const float* x, std::int64_t x_stride, const float* weight, float* y,
                   std::int64_t y_stride, std::int64_t rows, std::int64_t d, float eps);
  /// Of the above, contiguous: gx [rows, d] from gy, and adds to gw [d].
  void (*rms_norm_backward)(const float* x, const float* weight, const float* gy, float* gx,
                            float* gw, std::int64_t rows, std::int64_t d, float eps);
  /// Rotates heads of one token in place: pairs (i, i + head_dim / 2).
  void (*rope)(float* x, std::int64_t heads, std::int64_t head_dim, const float* cos,
               const float* sin);
  void (*attend)(const attention_task& task);
  /// scores[i] = softmax(scores · scale) over the first `keys`, 0 from there to `padded` (a multiple
  /// of 16); returns log Σ exp(scores · scale).
  float (*softmax)(float* scores, std::int64_t keys, std::int64_t padded, float scale);
  /// The same, given what it returned.
  void (*softmax_again)(float* scores, std::int64_t keys, std::int64_t padded, float scale,
                        float log_sum);
  /// g[i] = p[i] · (g[i] − delta) · scale, for `padded` of them.
  void (*softmax_backward)(const float* p, float* g, std::int64_t padded, float delta, float scale);
  float (*dot)(const float* a, const float* b, std::int64_t n);
  /// out[rows, ff] = silu(gate) · up, where a row of `gate_up` is gate [ff] then up [ff].
  void (*swiglu)(const float* gate_up, std::int64_t stride, float* out, std::int64_t out_stride,
                 std::int64_t rows, std::int64_t ff);
  /// Of the above, contiguous: g_gate_up [rows, 2·ff] from g_out [rows, ff].
  void (*swiglu_backward)(const float* gate_up, const float* g_out, float* g_gate_up,
                          std::int64_t rows, std::int64_t ff);
  /// Largest of n numbers; NaN unless all are finite.
  float (*maximum)(const float* x, std::int64_t n);
  /// w[i] = exp((x[i] − shift) · scale), and their sum over each 1,024 of them. w may be x; −∞
  /// gives 0.
  void (*exponentials)(const float* x, float* w, double* sums, std::int64_t n, float shift,
                       float scale);
};

/// The best table that this machine can run: avx512_vnni (with bf16), avx512, avx2 or generic.
const kernel_table& kernels();

/// A certain one, for tests; null when this machine or build lacks it.
const kernel_table* kernels_named(const char* name);

} // namespace millrace::model
