#include "runtime/model/device_weights.hpp"

#include "runtime/error.hpp"
#include "runtime/model/torch_device.hpp"

#include <ATen/ATen.h>

namespace millrace::model {
namespace {

constexpr std::int64_t alignment = 16; ///< of E4M3 matrices' sides
constexpr double largest_e4m3 = 448;
/// Rows below it have the scale 1, as in weight sync: the reciprocal of theirs could be infinite.
constexpr double smallest_scaled = 1e-30;

std::int64_t aligned(std::int64_t n) { return (n + alignment - 1) / alignment * alignment; }

at::ScalarType scalar_type(dtype t) {
  switch (t) {
    case dtype::f32: return at::kFloat;
    case dtype::bf16: return at::kBFloat16;
    case dtype::f8_e4m3: return at::kFloat8_e4m3fn;
    default: break;
  }
  throw invariant_error("weights on a device are fp32, bf16 or E4M3");
}

/// Where E4M3 is moved it is bytes: not every operation knows it.
at::Tensor movable(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat8_e4m3fn ? t.view(at::kByte) : t;
}

/// a · bᵀ of rows and columns that have scales.
at::Tensor scaled_product(const at::Tensor& a, const at::Tensor& a_scales, const at::Tensor& b,
                          const at::Tensor& b_scales) {
  if (a.is_cuda())
    return at::_scaled_mm(a, b.t(), a_scales, b_scales, {}, {}, at::kBFloat16,
                          /*use_fast_accum=*/true);
  // The CPU's has one scale for a whole matrix only.
  const auto left = a.to(at::kFloat) * a_scales, right = b.to(at::kFloat) * b_scales.t();
  return at::mm(left, right.t()).to(at::kBFloat16);
}

} // namespace

std::pair<at::Tensor, at::Tensor> quantised_rows(const at::Tensor& x) {
  const auto wide = x.to(at::kFloat);
  const auto largest = wide.abs().amax(1, /*keepdim=*/true);
  const auto scales = at::where(largest > smallest_scaled, largest / largest_e4m3,
                                at::ones_like(largest));
  const auto scaled = (wide * scales.reciprocal()).clamp(-largest_e4m3, largest_e4m3);
  return {scaled.to(at::kFloat8_e4m3fn), scales};
}

at::Tensor device_matrix::product(const at::Tensor& x) const {
  if (!scales.defined())
    return bias.defined() ? at::linear(x, values, bias) : at::linear(x, values);
  const auto padding = values.size(1) - k;
  const auto [rows, row_scales] = quantised_rows(padding > 0 ? at::constant_pad_nd(x, {0, padding})
                                                             : x);
  auto out = scaled_product(rows, row_scales, values, scales);
  if (out.size(1) > n)
    out = out.narrow(1, 0, n);
  return bias.defined() ? out + bias : out;
}

bool has_row_scales(c10::Device device) {
  constexpr std::int64_t n = alignment;
  try {
    device_matrix m;
    m.values = at::zeros({n, n}, at::TensorOptions(device).dtype(at::kByte))
                 .view(at::kFloat8_e4m3fn);
    m.scales = at::ones({1, n}, at::TensorOptions(device).dtype(at::kFloat));
    m.n = m.k = n;
    const auto out = m.product(at::zeros({n, n}, at::TensorOptions(device).dtype(at::kBFloat16)));
    wait_for(device);
    return true;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error&) {
    return false;
  }
}

device_weights::device_weights(const model_config& c, dtype type, c10::Device device)
    : type_(type), device_(device) {
  ensure(type == dtype::f32 || type == dtype::bf16 || type == dtype::f8_e4m3,
         "weights on a device are fp32, bf16 or E4M3");
  table("model.embed_tokens.weight", embedding, c.vocab_size, c.hidden_size);
  layers.resize(static_cast<std::size_t>(c.num_hidden_layers));
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i)
    layer(c, i);
  vector("model.norm.weight", final_norm, c.hidden_size);
  if (c.tie_word_embeddings)
    head = embedding;
  else
    table("lm_head.weight", head, c.vocab_size, c.hidden_size);
}

void device_weights::add(std::string name, dtype type, std::vector<std::int64_t> shape,
                         at::Tensor place) {
  const auto staged = at::zeros(shape, at::TensorOptions(device_).dtype(
                                         type == dtype::f8_e4m3 ? at::kByte : scalar_type(type)));
  tensor_view view{std::move(name), type, std::move(shape),
                   static_cast<std::byte*>(device_.is_meta() ? nullptr : staged.data_ptr()),
                   device_.is_cuda() ? memory_kind::cuda : memory_kind::host};
  arrivals_.push_back({std::move(view), staged, std::move(place)});
}

void device_weights::vector(const std::string& name, at::Tensor& whole, std::int64_t n) {
  whole = at::zeros({n}, at::TensorOptions(device_).dtype(at::kFloat));
  add(name, dtype::f32, {n}, whole);
}

void device_weights::table(const std::string& name, at::Tensor& whole, std::int64_t n,
                           std::int64_t k) {
  const auto type = type_ == dtype::f32 ? dtype::f32 : dtype::bf16;
  whole = at::zeros({n, k}, at::TensorOptions(device_).dtype(scalar_type(type)));
  add(name, type, {n, k}, whole);
}

void device_weights::matrix(const std::string& prefix, const std::vector<std::string>& names,
                            const std::vector<std::int64_t>& rows, std::int64_t k, bool biased,
                            device_matrix& m) {
  for (const auto r : rows)
    m.n += r;
  m.k = k;
  const auto on_device = at::TensorOptions(device_);
  const bool narrow = type_ == dtype::f8_e4m3;
  if (narrow) {
    m.values = at::zeros({aligned(m.n), aligned(k)}, on_device.dtype(at::kByte))
                 .view(at::kFloat8_e4m3fn);
    m.scales = at::ones({1, aligned(m.n)}, on_device.dtype(at::kFloat));
  } else
    m.values = at::zeros({m.n, k}, on_device.dtype(scalar_type(type_)));
  if (biased)
    m.bias = at::zeros({m.n}, on_device.dtype(compute_type()));
  std::int64_t at = 0;
  for (std::size_t i = 0; i < names.size(); at += rows[i++]) {
    const auto name = prefix + names[i];
    add(name + ".weight", type_, {rows[i], k},
        movable(m.values).narrow(0, at, rows[i]).narrow(1, 0, k));
    if (narrow)
      add(name + ".weight_scale", dtype::f32, {rows[i]}, m.scales[0].narrow(0, at, rows[i]));
    if (biased)
      add(name + ".bias", dtype::f32, {rows[i]}, m.bias.narrow(0, at, rows[i]));
  }
}

void device_weights::layer(const model_config& c, std::int64_t index) {
  auto& l = layers[static_cast<std::size_t>(index)];
  const auto prefix = "model.layers." + std::to_string(index) + ".";
  const auto d = c.hidden_size, q = c.query_size(), kv = c.key_value_size();
  const auto ff = c.intermediate_size;
  vector(prefix + "input_layernorm.weight", l.input_norm, d);
  matrix(prefix + "self_attn.", {"q_proj", "k_proj", "v_proj"}, {q, kv, kv}, d, c.qkv_bias, l.qkv);
  if (c.qk_norm) {
    vector(prefix + "self_attn.q_norm.weight", l.q_norm, c.head_dim);
    vector(prefix + "self_attn.k_norm.weight", l.k_norm, c.head_dim);
  }
  matrix(prefix + "self_attn.", {"o_proj"}, {d}, q, c.output_bias, l.output);
  vector(prefix + "post_attention_layernorm.weight", l.post_norm, d);
  matrix(prefix + "mlp.", {"gate_proj", "up_proj"}, {ff, ff}, d, c.mlp_bias, l.gate_up);
  matrix(prefix + "mlp.", {"down_proj"}, {d}, ff, c.mlp_bias, l.down);
}

std::vector<tensor_view> device_weights::staging() const {
  std::vector<tensor_view> views;
  for (const auto& a : arrivals_)
    views.push_back(a.view);
  return views;
}

void device_weights::swap() {
  for (const auto& a : arrivals_)
    a.place.copy_(a.staged);
  // Whoever fills the staging next may do so from another stream, or over the network.
  wait_for(device_);
  ready_ = true;
}

std::int64_t device_weights::bytes() const {
  std::int64_t sum = 0;
  for (const auto& a : arrivals_)
    sum += static_cast<std::int64_t>(a.view.bytes());
  return sum;
}

} // namespace millrace::model
