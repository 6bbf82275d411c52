#include "runtime/model/attention.hpp"

#include <algorithm>
#include <cmath>

namespace millrace::model {
namespace {

/// Query rows whose scores are held at once.
constexpr std::int64_t row_block = 64;

std::int64_t padded(std::int64_t n) { return strips_for(n) * strip_width; }

void room(std::vector<float>& v, std::int64_t n) {
  if (static_cast<std::int64_t>(v.size()) < n)
    v.resize(static_cast<std::size_t>(n));
}

/// One sequence and one key head: where its numbers lie, and memory to compute in.
class head_task {
public:
  head_task(const attention_input& in) : in_(in) {}

  void at(std::int64_t task) {
    const auto s = static_cast<std::size_t>(task / in_.kv_heads);
    kv_head = task % in_.kv_heads;
    begin = (*in_.cu_seqlens)[s];
    length = (*in_.cu_seqlens)[s + 1] - begin;
  }

  [[nodiscard]] std::int64_t group() const { return in_.heads / in_.kv_heads; }
  [[nodiscard]] std::int64_t q_at(std::int64_t head) const {
    return begin * in_.width() + head * in_.head_dim;
  }
  [[nodiscard]] std::int64_t k_at() const { return q_at(in_.heads + kv_head); }
  [[nodiscard]] std::int64_t v_at() const { return q_at(in_.heads + in_.kv_heads + kv_head); }

  /// [length, head_dim] rows as the right-hand side of rows · itemsᵀ.
  void pack_rows(const float* from, std::vector<float>& to) const {
    room(to, padded(length) * in_.head_dim);
    kernels().pack(from, in_.width(), to.data(), length, in_.head_dim, 0, strips_for(length));
  }
  /// The same as the right-hand side of weights [·, length] · rows.
  void pack_columns(const float* from, std::int64_t stride, std::int64_t rows,
                    std::vector<float>& to) const {
    room(to, padded(in_.head_dim) * rows);
    kernels().pack_columns(from, stride, to.data(), in_.head_dim, rows);
  }

  std::int64_t kv_head = 0, begin = 0, length = 0;

private:
  const attention_input& in_;
};

/// c[rows, columns] = a[rows, k] · packed: only the strips that hold `columns`.
void multiply(const float* a, std::int64_t a_stride, const float* packed, float* c,
              std::int64_t c_stride, std::int64_t rows, std::int64_t k, std::int64_t columns,
              std::int64_t strip_stride, bool add) {
  kernels().gemm({a, a_stride, packed, nullptr, c, c_stride, rows, k, columns, add, strip_stride},
                 0, strips_for(columns));
}

/// to[columns, rows] = from[rows, columns]ᵀ
void transpose(const float* from, std::int64_t from_stride, std::int64_t rows,
               std::int64_t columns, float* to, std::int64_t to_stride) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      to[j * to_stride + i] = from[i * from_stride + j];
}

} // namespace

void attention_forward(const attention_input& in, float* out, float* log_sums, std::int64_t first,
                       std::int64_t last) {
  const auto& k = kernels();
  const auto dim = in.head_dim, width = in.width(), out_width = in.heads * dim;
  const auto scale = 1.0F / std::sqrt(static_cast<float>(dim));
  std::vector<float> keys, values, scores;
  head_task t(in);
  for (auto task = first; task < last; ++task) {
    t.at(task);
    t.pack_rows(in.qkv + t.k_at(), keys);
    t.pack_columns(in.qkv + t.v_at(), width, t.length, values);
    const auto columns = padded(t.length);
    room(scores, row_block * columns);
    for (std::int64_t g = 0; g < t.group(); ++g)
      for (std::int64_t row = 0; row < t.length; row += row_block) {
        const auto head = t.kv_head * t.group() + g;
        const auto rows = std::min(row_block, t.length - row);
        const auto seen = row + rows; // keys that any of these rows may look at
        multiply(in.qkv + t.q_at(head) + row * width, width, keys.data(), scores.data(), columns,
                 rows, dim, padded(seen), 0, false);
        for (std::int64_t i = 0; i < rows; ++i)
          log_sums[(t.begin + row + i) * in.heads + head] =
            k.softmax(scores.data() + i * columns, row + i + 1, padded(seen), scale);
        multiply(scores.data(), columns, values.data(),
                 out + (t.begin + row) * out_width + head * dim, out_width, rows, seen, dim,
                 t.length * strip_width, false);
      }
  }
}

void attention_backward(const attention_input& in, const float* out, const float* log_sums,
                        const float* g_out, float* g_qkv, std::int64_t first, std::int64_t last) {
  const auto& k = kernels();
  const auto dim = in.head_dim, width = in.width(), out_width = in.heads * dim;
  const auto scale = 1.0F / std::sqrt(static_cast<float>(dim));
  std::vector<float> keys, values, key_columns, q_columns, g_columns, p, g, turned;
  head_task t(in);
  for (auto task = first; task < last; ++task) {
    t.at(task);
    t.pack_rows(in.qkv + t.k_at(), keys);
    t.pack_rows(in.qkv + t.v_at(), values);
    t.pack_columns(in.qkv + t.k_at(), width, t.length, key_columns);
    const auto columns = padded(t.length);
    room(p, row_block * columns);
    room(g, row_block * columns);
    room(turned, columns * row_block);
    for (std::int64_t i = 0; i < t.length; ++i) {
      std::fill_n(g_qkv + t.k_at() + i * width, dim, 0.0F);
      std::fill_n(g_qkv + t.v_at() + i * width, dim, 0.0F);
    }
    for (std::int64_t j = 0; j < t.group(); ++j)
      for (std::int64_t row = 0; row < t.length; row += row_block) {
        const auto head = t.kv_head * t.group() + j;
        const auto rows = std::min(row_block, t.length - row);
        const auto seen = row + rows;
        const auto* q = in.qkv + t.q_at(head) + row * width;
        const auto at = (t.begin + row) * out_width + head * dim;
        multiply(q, width, keys.data(), p.data(), columns, rows, dim, padded(seen), 0, false);
        multiply(g_out + at, out_width, values.data(), g.data(), columns, rows, dim, padded(seen),
                 0, false);
        for (std::int64_t i = 0; i < rows; ++i)
          k.softmax_again(p.data() + i * columns, row + i + 1, padded(seen), scale,
                          log_sums[(t.begin + row + i) * in.heads + head]);
        // gᵥ += pᵀ · g_out
        t.pack_columns(g_out + at, out_width, rows, g_columns);
        transpose(p.data(), columns, rows, seen, turned.data(), row_block);
        multiply(turned.data(), row_block, g_columns.data(), g_qkv + t.v_at(), width, seen, rows,
                 dim, 0, true);
        for (std::int64_t i = 0; i < rows; ++i) {
          const auto delta = k.dot(g_out + at + i * out_width, out + at + i * out_width, dim);
          k.softmax_backward(p.data() + i * columns, g.data() + i * columns, padded(seen), delta,
                             scale);
        }
        multiply(g.data(), columns, key_columns.data(), g_qkv + t.q_at(head) + row * width, width,
                 rows, seen, dim, t.length * strip_width, false);
        // g_k += gᵀ · q
        t.pack_columns(q, width, rows, q_columns);
        transpose(g.data(), columns, rows, seen, turned.data(), row_block);
        multiply(turned.data(), row_block, q_columns.data(), g_qkv + t.k_at(), width, seen, rows,
                 dim, 0, true);
      }
  }
}

} // namespace millrace::model
