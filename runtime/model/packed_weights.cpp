#include "runtime/model/packed_weights.hpp"

#include <algorithm>

namespace millrace::model {
namespace {

std::int64_t elements(const parameter_shape& p) {
  std::int64_t n = 1;
  for (const auto d : p.shape)
    n *= d;
  return n;
}

/// Walks the parameters in parameter_shapes() order. With `set.memory` empty it only counts the
/// floats that the set needs; otherwise it packs.
class packer {
public:
  packer(const kernel_table& kernels, const float* staged, weight_set& set)
      : kernels_(kernels), staged_(staged), set_(set) {}

  const float* vector(std::int64_t n) {
    const auto* from = staged_;
    staged_ += n;
    return copied(from, n);
  }

  /// The next n·k staged floats as a packed matrix.
  packed_matrix matrix(std::int64_t n, std::int64_t k) {
    const auto* from = staged_;
    staged_ += n * k;
    return packed(from, n, k);
  }

  packed_matrix packed(const float* from, std::int64_t n, std::int64_t k) {
    auto* to = place(strips_for(n) * strip_width * k);
    if (to)
      kernels_.pack(from, k, to, n, k, 0, strips_for(n));
    return {to, nullptr, n, k};
  }

  const float* copied(const float* from, std::int64_t n) {
    auto* to = place(n);
    if (to)
      std::copy(from, from + n, to);
    return to;
  }

  [[nodiscard]] const float* staged() const { return staged_; }
  [[nodiscard]] std::int64_t used() const { return used_; }

private:
  float* place(std::int64_t n) {
    // Cache lines of 64 bytes: a strip's row is one.
    const auto at = used_;
    used_ += (n + 15) / 16 * 16;
    if (set_.memory.empty())
      return nullptr;
    auto base = reinterpret_cast<std::uintptr_t>(set_.memory.data());
    return reinterpret_cast<float*>((base + 63) / 64 * 64) + at;
  }

  const kernel_table& kernels_;
  const float* staged_;
  weight_set& set_;
  std::int64_t used_ = 0;
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

std::int64_t pack_all(const kernel_table& kernels, const model_config& c, const float* staged,
                      weight_set& set) {
  packer p(kernels, staged, set);
  const auto* embedding = p.staged();
  set.embedding = p.vector(c.vocab_size * c.hidden_size);
  set.layers.clear();
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i)
    set.layers.push_back(pack_layer(p, c));
  set.final_norm = p.vector(c.hidden_size);
  set.head = c.tie_word_embeddings ? p.packed(embedding, c.vocab_size, c.hidden_size)
                                   : p.matrix(c.vocab_size, c.hidden_size);
  return p.used();
}

} // namespace

packed_weights::packed_weights(const model_config& config, const kernel_table& kernels)
    : config_(config), kernels_(kernels), shapes_(parameter_shapes(config)) {
  std::int64_t total = 0;
  for (const auto& p : shapes_)
    total += elements(p);
  staging_.resize(static_cast<std::size_t>(total));
}

std::vector<tensor_view> packed_weights::staging() const {
  std::vector<tensor_view> views;
  auto* at = staging_.data();
  for (const auto& p : shapes_) {
    views.push_back({p.name, dtype::f32, p.shape, reinterpret_cast<std::byte*>(at)});
    at += elements(p);
  }
  return views;
}

void packed_weights::prepare() {
  auto& spare = sets_[current_ == 0 ? 1 : 0];
  if (spare.memory.empty()) {
    const auto need = pack_all(kernels_, config_, staging_.data(), spare);
    spare.memory.resize(static_cast<std::size_t>(need) + 16);
  }
  pack_all(kernels_, config_, staging_.data(), spare);
  prepared_ = true;
}

void packed_weights::swap() {
  if (!prepared_)
    prepare();
  current_ = current_ == 0 ? 1 : 0;
  prepared_ = false;
}

} // namespace millrace::model
