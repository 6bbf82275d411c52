#include "runtime/model/attention.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace millrace::model {
namespace {

/// Query rows whose scores are held at once.
constexpr std::int64_t row_block = 64;

std::int64_t padded(std::int64_t n) { return strips_for(n) * strip_width; }

void room(std::vector<float>& v, std::int64_t n) {
  if (static_cast<std::int64_t>(v.size()) < n)
    v.resize(static_cast<std::size_t>(n));
}

/// One segment and one key head: where its numbers lie, and memory to compute in.
class head_task {
public:
  head_task(const attention_input& in, std::int64_t head) : kv_head(head), in_(in) {}

  void at(std::int64_t segment) {
    begin = in_.parts->begin(segment);
    length = in_.parts->length(segment);
    const auto p = in_.parts->prefix_of(segment);
    prefix_begin = p < 0 ? 0 : in_.parts->begin(p);
    prefix = p < 0 ? 0 : in_.parts->length(p);
  }

  [[nodiscard]] std::int64_t group() const { return in_.heads / in_.kv_heads; }
  [[nodiscard]] std::int64_t keys() const { return prefix + length; }
  [[nodiscard]] std::int64_t q_at(std::int64_t head) const {
    return begin * in_.width() + head * in_.head_dim;
  }
  [[nodiscard]] std::int64_t k_at() const { return q_at(in_.heads + kv_head); }
  [[nodiscard]] std::int64_t v_at() const { return q_at(in_.heads + in_.kv_heads + kv_head); }
  /// From a place in the segment to the same one in its prefix.
  [[nodiscard]] std::int64_t to_prefix() const { return (prefix_begin - begin) * in_.width(); }

  /// [keys, head_dim]: where the rows at `at` lie, the prefix's first; gathered where there is one.
  struct rows {
    const float* from;
    std::int64_t stride;
  };
  rows gathered(std::int64_t at, std::vector<float>& memory) const {
    const auto dim = in_.head_dim;
    if (prefix == 0)
      return {in_.qkv + at, in_.width()};
    room(memory, keys() * dim);
    for (std::int64_t i = 0; i < prefix; ++i)
      std::copy_n(in_.qkv + at + to_prefix() + i * in_.width(), dim, memory.data() + i * dim);
    for (std::int64_t i = 0; i < length; ++i)
      std::copy_n(in_.qkv + at + i * in_.width(), dim, memory.data() + (prefix + i) * dim);
    return {memory.data(), dim};
  }

  /// Rows as the right-hand side of rows · itemsᵀ.
  void pack_rows(const rows& r, std::vector<float>& to) const {
    room(to, padded(keys()) * in_.head_dim);
    kernels().pack(r.from, r.stride, to.data(), keys(), in_.head_dim, 0, strips_for(keys()));
  }
  /// The same as the right-hand side of weights [·, n] · rows.
  void pack_columns(const rows& r, std::int64_t n, std::vector<float>& to) const {
    room(to, padded(in_.head_dim) * n);
    kernels().pack_columns(r.from, r.stride, to.data(), in_.head_dim, n);
  }

  std::int64_t kv_head = 0, begin = 0, length = 0, prefix = 0, prefix_begin = 0;

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

/// Calls visit(task at a segment) for every segment of the tasks, in order.
template <class Visit>
void for_each_segment(const attention_input& in, std::int64_t first, std::int64_t last,
                      Visit visit) {
  for (auto task = first; task < last; ++task) {
    const auto tree = static_cast<std::size_t>(task / in.kv_heads);
    head_task t(in, task % in.kv_heads);
    for (auto s = (*in.trees)[tree]; s < (*in.trees)[tree + 1]; ++s) {
      t.at(s);
      visit(t);
    }
  }
}

/// Of one segment in the backward pass: gradients of keys and values, at first 0. Where there is a
/// prefix they are summed aside, and added to its own at the end.
class key_value_gradients {
public:
  key_value_gradients(const attention_input& in, float* g_qkv) : in_(in), g_qkv_(g_qkv) {}

  void begin(const head_task& t) {
    for (auto at : {t.k_at(), t.v_at()})
      for (std::int64_t i = 0; i < t.length; ++i)
        std::fill_n(g_qkv_ + at + i * in_.width(), in_.head_dim, 0.0F);
    if (t.prefix == 0) {
      keys = g_qkv_ + t.k_at();
      values = g_qkv_ + t.v_at();
      stride = in_.width();
      return;
    }
    for (auto* m : {&k_, &v_})
      m->assign(static_cast<std::size_t>(t.keys() * in_.head_dim), 0.0F);
    keys = k_.data();
    values = v_.data();
    stride = in_.head_dim;
  }

  void end(const head_task& t) {
    if (t.prefix == 0)
      return;
    for (auto [from, at] : {std::pair{keys, t.k_at()}, {values, t.v_at()}})
      for (std::int64_t i = 0; i < t.keys(); ++i) {
        auto* to = g_qkv_ + at
                   + (i < t.prefix ? t.to_prefix() + i * in_.width()
                                   : (i - t.prefix) * in_.width());
        for (std::int64_t j = 0; j < in_.head_dim; ++j)
          to[j] += from[i * in_.head_dim + j];
      }
  }

  float* keys = nullptr;
  float* values = nullptr;
  std::int64_t stride = 0;

private:
  const attention_input& in_;
  float* g_qkv_;
  std::vector<float> k_, v_;
};

} // namespace

std::vector<std::int32_t> segments::trees() const {
  std::vector<std::int32_t> firsts;
  for (std::int64_t s = 0; s < count(); ++s)
    if (prefix_of(s) < 0)
      firsts.push_back(static_cast<std::int32_t>(s));
  firsts.push_back(static_cast<std::int32_t>(count()));
  return firsts;
}

void attention_forward(const attention_input& in, float* out, float* log_sums, std::int64_t first,
                       std::int64_t last) {
  const auto& k = kernels();
  const auto dim = in.head_dim, width = in.width(), out_width = in.heads * dim;
  const auto scale = 1.0F / std::sqrt(static_cast<float>(dim));
  std::vector<float> gathered, keys, values, scores;
  for_each_segment(in, first, last, [&](const head_task& t) {
    t.pack_rows(t.gathered(t.k_at(), gathered), keys);
    t.pack_columns(t.gathered(t.v_at(), gathered), t.keys(), values);
    const auto columns = padded(t.keys());
    room(scores, row_block * columns);
    for (std::int64_t g = 0; g < t.group(); ++g)
      for (std::int64_t row = 0; row < t.length; row += row_block) {
        const auto head = t.kv_head * t.group() + g;
        const auto rows = std::min(row_block, t.length - row);
        const auto seen = t.prefix + row + rows; // keys that any of these rows may look at
        multiply(in.qkv + t.q_at(head) + row * width, width, keys.data(), scores.data(), columns,
                 rows, dim, padded(seen), 0, false);
        for (std::int64_t i = 0; i < rows; ++i)
          log_sums[(t.begin + row + i) * in.heads + head] = k.softmax(
            scores.data() + i * columns, t.prefix + row + i + 1, padded(seen), scale);
        multiply(scores.data(), columns, values.data(),
                 out + (t.begin + row) * out_width + head * dim, out_width, rows, seen, dim,
                 t.keys() * strip_width, false);
      }
  });
}

void attention_backward(const attention_input& in, const float* out, const float* log_sums,
                        const float* g_out, float* g_qkv, std::int64_t first, std::int64_t last) {
  const auto& k = kernels();
  const auto dim = in.head_dim, width = in.width(), out_width = in.heads * dim;
  const auto scale = 1.0F / std::sqrt(static_cast<float>(dim));
  std::vector<float> gathered, keys, values, key_columns, q_columns, g_columns, p, g, turned;
  key_value_gradients to(in, g_qkv);
  for_each_segment(in, first, last, [&](const head_task& t) {
    t.pack_rows(t.gathered(t.v_at(), gathered), values);
    const auto key_rows = t.gathered(t.k_at(), gathered);
    t.pack_rows(key_rows, keys);
    t.pack_columns(key_rows, t.keys(), key_columns);
    const auto columns = padded(t.keys());
    room(p, row_block * columns);
    room(g, row_block * columns);
    room(turned, columns * row_block);
    to.begin(t);
    for (std::int64_t j = 0; j < t.group(); ++j)
      for (std::int64_t row = 0; row < t.length; row += row_block) {
        const auto head = t.kv_head * t.group() + j;
        const auto rows = std::min(row_block, t.length - row);
        const auto seen = t.prefix + row + rows;
        const auto* q = in.qkv + t.q_at(head) + row * width;
        const auto at = (t.begin + row) * out_width + head * dim;
        multiply(q, width, keys.data(), p.data(), columns, rows, dim, padded(seen), 0, false);
        multiply(g_out + at, out_width, values.data(), g.data(), columns, rows, dim, padded(seen),
                 0, false);
        for (std::int64_t i = 0; i < rows; ++i)
          k.softmax_again(p.data() + i * columns, t.prefix + row + i + 1, padded(seen), scale,
                          log_sums[(t.begin + row + i) * in.heads + head]);
        // gᵥ += pᵀ · g_out
        t.pack_columns({g_out + at, out_width}, rows, g_columns);
        transpose(p.data(), columns, rows, seen, turned.data(), row_block);
        multiply(turned.data(), row_block, g_columns.data(), to.values, to.stride, seen, rows, dim,
                 0, true);
        for (std::int64_t i = 0; i < rows; ++i) {
          const auto delta = k.dot(g_out + at + i * out_width, out + at + i * out_width, dim);
          k.softmax_backward(p.data() + i * columns, g.data() + i * columns, padded(seen), delta,
                             scale);
        }
        multiply(g.data(), columns, key_columns.data(), g_qkv + t.q_at(head) + row * width, width,
                 rows, seen, dim, t.keys() * strip_width, false);
        // g_k += gᵀ · q
        t.pack_columns({q, width}, rows, q_columns);
        transpose(g.data(), columns, rows, seen, turned.data(), row_block);
        multiply(turned.data(), row_block, q_columns.data(), to.keys, to.stride, seen, rows, dim,
                 0, true);
      }
    to.end(t);
  });
}

} // namespace millrace::model
