#include "runtime/model/transformer.hpp"

#include "runtime/error.hpp"
#include "runtime/model/checkpoint.hpp"
#include "runtime/model/recomputed_layer.hpp"
#include "runtime/model/tensor_parallel_ops.hpp"
#include "runtime/model/transformer_ops.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace millrace::model {
namespace {

struct layer {
  at::Tensor input_norm, post_norm, q_norm, k_norm;
  at::Tensor output_bias, down_bias; ///< in a group, where they are added after the sum
  joined_weights qkv, output, gate_up, down;
};

dtype element_type(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat: return dtype::f32;
    case at::kBFloat16: return dtype::bf16;
    case at::kHalf: return dtype::f16;
    default: break;
  }
  throw invariant_error("a parameter is neither fp32, bf16 nor fp16");
}

/// How many positions the batch has at most; without asking a device, which would have to be waited for.
std::int64_t positions_of(const packed_batch& batch) {
  if (batch.positions.device().is_cpu())
    return batch.positions.max().item<std::int64_t>() + 1;
  const segments parts{batch.cu_seqlens, batch.prefixes};
  std::int64_t most = 0;
  for (std::int64_t s = 0; s < parts.count(); ++s) {
    const auto p = parts.prefix_of(s);
    most = std::max<std::int64_t>(most, parts.length(s) + (p < 0 ? 0 : parts.length(p)));
  }
  return most;
}

/// A sequence that is continued is followed at once by what continues it.
void check_prefixes(const packed_batch& batch) {
  if (batch.prefixes.empty())
    return;
  ensure(batch.prefixes.size() + 1 == batch.cu_seqlens.size(),
         "a packed batch names prefixes of some sequences only");
  std::int32_t root = -1;
  for (std::size_t s = 0; s < batch.prefixes.size(); ++s) {
    const auto p = batch.prefixes[s];
    if (p < 0)
      root = static_cast<std::int32_t>(s);
    else
      ensure(p == root, [&] { return "sequence " + std::to_string(s) + " continues sequence "
                                     + std::to_string(p) + ", which isn't the one before it"; });
  }
}

} // namespace

struct transformer::parts {
  model_config whole;
  std::shared_ptr<const tensor_group> group;
  model_config config; ///< of this rank's part
  bool recompute = false;
  at::ScalarType compute = at::kFloat;
  at::Tensor flat, flat_gradient;
  std::vector<named_tensor> parameters;
  std::unordered_map<std::string, std::size_t> index; ///< of parameters, by name
  at::Tensor embedding, final_norm, head;
  std::vector<layer> layers;
  mutable std::mutex rotation_guard;
  mutable std::shared_ptr<const rotary> rotation;

  parts(model_config c, const at::TensorOptions& options, std::shared_ptr<const tensor_group> g);
  void slice();
  void connect();
  joined_weights join(const std::string& prefix, const std::vector<std::string>& names,
                      bool biased);
  std::shared_ptr<const rotary> rotation_for(std::int64_t positions) const;
  at::Tensor embed(const at::Tensor& tokens) const;
  at::Tensor forward(const layer& l, const at::Tensor& x,
                     const std::shared_ptr<const attention_layout>& layout) const;
  [[nodiscard]] const at::Tensor& named(const std::string& name) const;
};

transformer::parts::parts(model_config c, const at::TensorOptions& options,
                          std::shared_ptr<const tensor_group> g)
    : whole(std::move(c)), group(std::move(g)) {
  whole.validate("model");
  config = group ? local_config(whole, group->rank, group->size) : whole;
  std::int64_t total = 0;
  for (const auto& p : parameter_shapes(config))
    total += c10::multiply_integers(p.shape);
  flat = at::zeros({total}, options.dtype(options.dtype_opt().value_or(
                              c10::scalarTypeToTypeMeta(at::kFloat))));
  slice();
  connect();
}

/// Names the flat buffer's pieces.
void transformer::parts::slice() {
  std::int64_t at = 0;
  for (const auto& p : parameter_shapes(config)) {
    const auto n = c10::multiply_integers(p.shape);
    parameters.push_back({p.name, flat.narrow(0, at, n).view(p.shape).detach()});
    parameters.back().value.set_requires_grad(true);
    index[p.name] = parameters.size() - 1;
    at += n;
  }
}

const at::Tensor& transformer::parts::named(const std::string& name) const {
  const auto at = index.find(name);
  ensure(at != index.end(), [&] { return "no parameter is called " + name; });
  return parameters[at->second].value;
}

joined_weights transformer::parts::join(const std::string& prefix,
                                        const std::vector<std::string>& names, bool biased) {
  joined_weights w;
  std::int64_t rows = 0;
  for (const auto& n : names) {
    w.parts.push_back(named(prefix + n + ".weight"));
    rows += w.parts.back().size(0);
    if (biased)
      w.part_biases.push_back(named(prefix + n + ".bias"));
  }
  // Neighbours in parameter_shapes() order.
  const auto k = w.parts[0].size(1);
  w.joined = flat.narrow(0, w.parts[0].storage_offset(), rows * k).view({rows, k}).detach();
  if (biased)
    w.joined_bias = flat.narrow(0, w.part_biases[0].storage_offset(), rows).detach();
  return w;
}

/// A bias that is not to be added with the product.
static at::Tensor set_aside(joined_weights& w) {
  auto bias = w.part_biases.empty() ? at::Tensor() : w.part_biases[0];
  w.part_biases.clear();
  w.joined_bias = at::Tensor();
  return bias;
}

void transformer::parts::connect() {
  embedding = named("model.embed_tokens.weight");
  final_norm = named("model.norm.weight");
  head = config.tie_word_embeddings ? embedding : named("lm_head.weight");
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const auto prefix = "model.layers." + std::to_string(i) + ".";
    layer l;
    l.input_norm = named(prefix + "input_layernorm.weight");
    l.post_norm = named(prefix + "post_attention_layernorm.weight");
    if (config.qk_norm) {
      l.q_norm = named(prefix + "self_attn.q_norm.weight");
      l.k_norm = named(prefix + "self_attn.k_norm.weight");
    }
    l.qkv = join(prefix + "self_attn.", {"q_proj", "k_proj", "v_proj"}, config.qkv_bias);
    l.output = join(prefix + "self_attn.", {"o_proj"}, config.output_bias);
    l.gate_up = join(prefix + "mlp.", {"gate_proj", "up_proj"}, config.mlp_bias);
    l.down = join(prefix + "mlp.", {"down_proj"}, config.mlp_bias);
    if (group) {
      l.output_bias = set_aside(l.output);
      l.down_bias = set_aside(l.down);
    }
    layers.push_back(std::move(l));
  }
}

std::shared_ptr<const rotary> transformer::parts::rotation_for(std::int64_t positions) const {
  const std::lock_guard lock(rotation_guard);
  const auto half = static_cast<std::size_t>(config.head_dim / 2);
  if (!rotation || rotation->host.cos.size() / half < static_cast<std::size_t>(positions)) {
    auto made = std::make_shared<rotary>();
    made->host = make_rope_tables(config, std::max<std::int64_t>(2 * positions, 64));
    for (const auto s : made->host.sin)
      made->minus_sin.push_back(-s);
    const auto table = [&](const std::vector<float>& values) {
      return at::tensor(values, at::kFloat).view({-1, config.head_dim / 2}).to(flat.device());
    };
    made->cos = table(made->host.cos);
    made->sin = table(made->host.sin);
    rotation = std::move(made);
  }
  return rotation;
}

at::Tensor transformer::parts::forward(
  const layer& l, const at::Tensor& x,
  const std::shared_ptr<const attention_layout>& layout) const {
  const auto eps = config.rms_norm_eps;
  const auto add = [&](const at::Tensor& to, const at::Tensor& x, const at::Tensor& bias) {
    const auto sum = group ? leave_group(x.to(at::kFloat), group) : x;
    return bias.defined() ? to + sum + bias : to + sum;
  };
  const auto n = layout->positions.numel();
  const auto normed_input = [&](const at::Tensor& to, const at::Tensor& weight) {
    const auto in = enter_group(rms_norm(to, weight, eps), group, n);
    return compute == at::kFloat ? in : in.to(compute);
  };
  auto qkv = joined_linear(normed_input(x, l.input_norm), l.qkv);
  if (config.qk_norm) {
    const auto q = config.query_size(), kv = config.key_value_size();
    const auto normed = [&](std::int64_t from, std::int64_t size, const at::Tensor& weight) {
      return rms_norm(qkv.narrow(1, from, size).reshape({-1, config.head_dim}), weight, eps)
        .view({n, size});
    };
    qkv = at::cat({normed(0, q, l.q_norm), normed(q, kv, l.k_norm), qkv.narrow(1, q + kv, kv)}, 1);
  }
  const auto y = add(x, joined_linear(causal_attention(qkv, layout), l.output), l.output_bias);
  const auto inner = normed_input(y, l.post_norm);
  return add(y, joined_linear(swiglu(joined_linear(inner, l.gate_up)), l.down), l.down_bias);
}

at::Tensor transformer::parts::embed(const at::Tensor& tokens) const {
  if (!group)
    return at::embedding(embedding, tokens);
  const auto own = slice_of(whole, "embed_tokens.weight", group->rank, group->size);
  const auto at = tokens - own.begin;
  const auto here = at.ge(0).logical_and(at.lt(own.length)).unsqueeze(1);
  return leave_group(at::embedding(embedding, at.clamp(0, own.length - 1)) * here, group);
}

transformer::transformer(model_config config, const at::TensorOptions& options,
                         std::shared_ptr<const tensor_group> group)
    : parts_(std::make_unique<parts>(std::move(config), options, std::move(group))) {}
transformer::~transformer() = default;
transformer::transformer(transformer&&) noexcept = default;
transformer& transformer::operator=(transformer&&) noexcept = default;

void transformer::initialise(std::uint64_t seed) {
  ensure(device().is_cpu(), "random weights are made in host memory");
  ensure(!parts_->group, "random weights are made for the whole model, then handed out");
  model::initialise(parts_->config, views(), seed);
}

at::Tensor transformer::hidden(const packed_batch& batch) const {
  const auto n = batch.tokens.numel();
  const auto& ends = batch.cu_seqlens;
  ensure(batch.positions.numel() == n && !ends.empty() && ends.front() == 0 && ends.back() == n
           && std::is_sorted(ends.begin(), ends.end()),
         [&] { return "packed batch of " + std::to_string(n) + " tokens, "
                      + std::to_string(batch.positions.numel()) + " positions and "
                      + std::to_string(ends.size()) + " boundaries"; });
  check_prefixes(batch);
  auto x = parts_->embed(batch.tokens);
  if (n > 0) {
    auto layout = std::make_shared<attention_layout>();
    layout->heads = parts_->config.num_attention_heads;
    layout->kv_heads = parts_->config.num_key_value_heads;
    layout->head_dim = parts_->config.head_dim;
    layout->parts = {ends, batch.prefixes};
    layout->positions = batch.positions.contiguous();
    layout->rotation = parts_->rotation_for(positions_of(batch));
    complete(*layout, x);
    for (const auto& l : parts_->layers) {
      const auto forward = [&p = *parts_, &l, layout](const at::Tensor& in) {
        return p.forward(l, in, layout);
      };
      x = parts_->recompute && x.requires_grad() ? recomputed(x, forward) : forward(x);
    }
  }
  return collect_tokens(rms_norm(x, parts_->final_norm, parts_->config.rms_norm_eps), parts_->group,
                        n);
}

at::Tensor transformer::head_weight() const { return parts_->head; }

at::Tensor transformer::logits(const packed_batch& batch) const {
  return at::linear(hidden(batch), parts_->head);
}

const std::vector<named_tensor>& transformer::parameters() const { return parts_->parameters; }

std::vector<tensor_view> transformer::views() const {
  std::vector<tensor_view> all;
  for (const auto& [name, value] : parts_->parameters)
    all.push_back({name, element_type(value), value.sizes().vec(),
                   static_cast<std::byte*>(value.mutable_data_ptr()),
                   value.is_cuda() ? memory_kind::cuda : memory_kind::host});
  return all;
}

at::Tensor transformer::flat() const { return parts_->flat; }
c10::Device transformer::device() const { return parts_->flat.device(); }

at::Tensor transformer::flat_gradient() {
  auto& g = parts_->flat_gradient;
  if (!g.defined()) {
    g = at::zeros_like(parts_->flat);
    for (auto& [name, value] : parts_->parameters)
      value.mutable_grad() = g.narrow(0, value.storage_offset(), value.numel()).view_as(value);
  }
  return g;
}

void transformer::requires_gradient(bool on) {
  for (auto& p : parts_->parameters)
    p.value.set_requires_grad(on);
}

transformer transformer::frozen_copy(std::optional<c10::Device> device) const {
  transformer copy(parts_->whole, parts_->flat.options().device(device.value_or(this->device())),
                   parts_->group);
  copy.copy_from(*this);
  copy.compute_in(parts_->compute);
  copy.requires_gradient(false);
  return copy;
}

void transformer::copy_from(const transformer& other) {
  ensure(config() == other.config(), "weights are copied between models of different shape");
  const c10::NoGradGuard no_gradient;
  parts_->flat.copy_(other.parts_->flat);
}

void transformer::recompute_activations(bool on) { parts_->recompute = on; }

void transformer::compute_in(at::ScalarType type) {
  ensure(type == at::kFloat || type == at::kBFloat16, "layers compute in fp32 or bf16");
  parts_->compute = type;
}

const model_config& transformer::config() const { return parts_->config; }
const model_config& transformer::whole_config() const { return parts_->whole; }
const std::shared_ptr<const tensor_group>& transformer::group() const { return parts_->group; }

packed_batch pack(const std::vector<std::vector<std::int32_t>>& sequences) {
  packed_batch batch;
  batch.cu_seqlens.push_back(0);
  for (const auto& s : sequences)
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + static_cast<std::int32_t>(s.size()));
  batch.tokens = at::empty({batch.cu_seqlens.back()}, at::kLong);
  batch.positions = at::empty({batch.cu_seqlens.back()}, at::kLong);
  auto* token = batch.tokens.mutable_data_ptr<std::int64_t>();
  auto* position = batch.positions.mutable_data_ptr<std::int64_t>();
  for (const auto& s : sequences)
    for (std::size_t i = 0; i < s.size(); ++i) {
      *token++ = s[i];
      *position++ = static_cast<std::int64_t>(i);
    }
  return batch;
}

loaded_model load_model(const std::filesystem::path& folder) {
  transformer network(read_config(folder));
  load_checkpoint(folder, network.views());
  std::unique_ptr<tokenizer> tokens;
  if (has_tokenizer(folder))
    tokens = load_tokenizer(folder);
  return {std::move(network), std::move(tokens)};
}

} // namespace millrace::model
