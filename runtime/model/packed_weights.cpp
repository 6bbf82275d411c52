#include "runtime/model/packed_weights.hpp"

#include "runtime/error.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace millrace::model {
namespace {

std::int64_t elements(const parameter_shape& p) {
  std::int64_t n = 1;
  for (const auto d : p.shape)
    n *= d;
  return n;
}

/// 32-bit lanes along k.
std::int64_t lanes_of(dtype type, std::int64_t k) {
  if (type == dtype::f32)
    return k;
  return type == dtype::bf16 ? (k + 1) / 2 : (k + i8_group - 1) / i8_group * (i8_group / 4);
}

/// Walks the parameters in parameter_shapes() order. With `set.memory` empty it only counts the
/// bytes that the set needs; otherwise it packs.
class packer {
public:
  packer(const kernel_table& kernels, dtype type, const std::byte* matrices, const float* vectors,
         weight_set& set)
      : kernels_(kernels), type_(type), matrices_(matrices), vectors_(vectors), set_(set) {}

  const float* vector(std::int64_t n) {
    auto* to = reinterpret_cast<float*>(place(static_cast<std::size_t>(n) * sizeof(float)));
    if (to)
      std::copy(vectors_, vectors_ + n, to);
    vectors_ += n;
    return to;
  }

  /// The next matrices, together n outputs, as one. Of 8-bit ones the scales are the next vectors.
  packed_matrix matrix(std::int64_t n, std::int64_t k) {
    const auto row_bytes = k * static_cast<std::int64_t>(size_of(type_));
    const auto* from = matrices_;
    matrices_ += n * row_bytes;
    packed_matrix m{.n = n, .k = k, .type = type_};
    auto* to = place(packed_matrix::bytes(type_, n, k));
    m.data = to;
    if (to)
      kernels_.pack_lanes(from, row_bytes, to, n, lanes_of(type_, k),
                          type_ == dtype::i8 ? 0x80808080U : 0U, 0, strips_for(n));
    if (type_ == dtype::i8) {
      const auto padded = strips_for(n) * strip_width;
      auto* scales = reinterpret_cast<float*>(place(static_cast<std::size_t>(padded) * 4));
      if (scales)
        std::fill(std::copy(vectors_, vectors_ + n, scales), scales + padded, 0.0F);
      vectors_ += n;
      m.scales = scales;
    }
    return m;
  }

  [[nodiscard]] std::size_t used() const { return used_; }

private:
  std::byte* place(std::size_t bytes) {
    const auto at = used_;
    used_ += (bytes + 63) / 64 * 64;
    return set_.memory.empty() ? nullptr : set_.memory.data() + at;
  }

  const kernel_table& kernels_;
  dtype type_;
  const std::byte* matrices_;
  const float* vectors_;
  weight_set& set_;
  std::size_t used_ = 0;
};

layer_weights pack_layer(packer& p, const model_config& c) {
  layer_weights w;
  const auto d = c.hidden_size, q = c.query_size(), kv = c.key_value_size();
  const auto ff = c.intermediate_size;
  w.input_norm = p.vector(d);
  w.qkv = p.matrix(q + 2 * kv, d);
  if (c.qkv_bias)
    w.qkv.bias = p.vector(q + 2 * kv);
  if (c.qk_norm) {
    w.q_norm = p.vector(c.head_dim);
    w.k_norm = p.vector(c.head_dim);
  }
  w.output = p.matrix(d, q);
  if (c.output_bias)
    w.output.bias = p.vector(d);
  w.post_norm = p.vector(d);
  w.gate_up = p.matrix(2 * ff, d);
  if (c.mlp_bias)
    w.gate_up.bias = p.vector(2 * ff);
  w.down = p.matrix(d, ff);
  if (c.mlp_bias)
    w.down.bias = p.vector(d);
  return w;
}

std::size_t pack_all(packer p, const model_config& c, weight_set& set) {
  set.embedding = p.matrix(c.vocab_size, c.hidden_size);
  set.layers.clear();
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i)
    set.layers.push_back(pack_layer(p, c));
  set.final_norm = p.vector(c.hidden_size);
  set.head = c.tie_word_embeddings ? set.embedding : p.matrix(c.vocab_size, c.hidden_size);
  return p.used();
}

} // namespace

std::size_t packed_matrix::bytes(dtype type, std::int64_t n, std::int64_t k) {
  return static_cast<std::size_t>(strips_for(n) * strip_width * lanes_of(type, k)) * 4;
}

void packed_matrix::unpack(std::int64_t row, float* out) const {
  const auto* strip = data + row / strip_width * strip_width * lanes_of(type, k) * 4
                      + row % strip_width * 4;
  const float scale = type == dtype::i8 ? scales[row] : 1.0F;
  for (std::int64_t i = 0; i < k; ++i) {
    if (type == dtype::f32)
      std::memcpy(out + i, strip + i * strip_width * 4, 4);
    else if (type == dtype::bf16) {
      std::uint16_t half = 0;
      std::memcpy(&half, strip + i / 2 * strip_width * 4 + i % 2 * 2, 2);
      out[i] = std::bit_cast<float>(std::uint32_t{half} << 16);
    } else {
      const auto q = static_cast<int>(strip[i / 4 * strip_width * 4 + i % 4]) - 128;
      out[i] = static_cast<float>(q) * scale;
    }
  }
}

packed_weights::packed_weights(const model_config& config, const kernel_table& kernels, dtype type)
    : config_(config), kernels_(kernels), type_(type), shapes_(parameter_shapes(config)) {
  ensure(type == dtype::f32 || type == dtype::bf16 || type == dtype::i8,
         "weights are computed with in fp32, bf16 or 8-bit integers");
  std::size_t matrices = 0, vectors = 0;
  for (const auto& p : shapes_)
    if (p.shape.size() == 2) {
      matrices += static_cast<std::size_t>(elements(p)) * size_of(type_);
      vectors += type_ == dtype::i8 ? static_cast<std::size_t>(p.shape[0]) * 4 : 0;
    } else
      vectors += static_cast<std::size_t>(elements(p)) * 4;
  staged_matrices_ = page_memory(matrices, "the model");
  staged_vectors_ = page_memory(vectors, "the model");
}

std::vector<tensor_view> packed_weights::staging() const {
  std::vector<tensor_view> views;
  auto *matrices = staged_matrices_.data(), *vectors = staged_vectors_.data();
  const auto add = [&](std::string name, dtype type, std::vector<std::int64_t> shape,
                       std::byte*& at) {
    views.push_back({std::move(name), type, std::move(shape), at});
    at += views.back().bytes();
  };
  for (const auto& p : shapes_)
    if (p.shape.size() == 2) {
      add(p.name, type_, p.shape, matrices);
      if (type_ == dtype::i8)
        add(p.name + "_scale", dtype::f32, {p.shape[0]}, vectors);
    } else
      add(p.name, dtype::f32, p.shape, vectors);
  return views;
}

void packed_weights::prepare() {
  auto& spare = sets_[current_ == 0 ? 1 : 0];
  const packer all(kernels_, type_, staged_matrices_.data(),
                   reinterpret_cast<const float*>(staged_vectors_.data()), spare);
  if (spare.memory.empty())
    spare.memory = page_memory(pack_all(all, config_, spare), "the model");
  pack_all(all, config_, spare);
  prepared_ = true;
}

void packed_weights::swap() {
  if (!prepared_)
    prepare();
  current_ = current_ == 0 ? 1 : 0;
  prepared_ = false;
}

} // namespace millrace::model
