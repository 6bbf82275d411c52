#include "runtime/model/device_decoder.hpp"

#include "runtime/error.hpp"
#include "runtime/model/device_batch.hpp"
#include "runtime/model/device_weights.hpp"
#include "runtime/model/kv_cache.hpp"
#include "runtime/model/torch_device.hpp"
#include "runtime/model/transformer_ops.hpp"
#include "runtime/model/wide_product.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <optional>
#include <set>
#include <string>

namespace millrace::model {
namespace {

class device_decoder final : public decoder {
public:
  device_decoder(c10::Device device, const model_config& config, const decoder_options& options)
      : device_(device), config_(config), options_(options),
        weights_(config, options.weights, device), pool_(options.threads) {
    const auto rope = make_rope_tables(config, options.max_context);
    const auto table = [&](const std::vector<float>& values) {
      return at::tensor(values, at::kFloat)
        .view({options.max_context, config.head_dim / 2}).to(device);
    };
    cos_ = table(rope.cos);
    sin_ = table(rope.sin);
    // Zeros, because what a mask hides must be finite all the same. The last block, no sequence's,
    // stays so.
    cache_ = at::zeros({config.num_hidden_layers, 2, std::int64_t{options.blocks} + 1,
                        block_tokens * config.num_key_value_heads * config.head_dim},
                       at::TensorOptions(device).dtype(weights_.compute_type()));
  }

  void forward(std::span<const token_run> runs) override;

  [[nodiscard]] float* logits(std::size_t i) override {
    return logits_.data_ptr<float>() + static_cast<std::int64_t>(i) * config_.vocab_size;
  }
  void copy_block(std::int32_t from, std::int32_t to) override {
    const c10::InferenceMode guard;
    cache_.select(2, to).copy_(cache_.select(2, from));
    copied_.insert(to);
  }
  [[nodiscard]] std::vector<tensor_view> staging() override { return weights_.staging(); }
  void prepare() override {} // what is staged is laid out as it is copied
  void swap() override {
    const c10::InferenceMode guard;
    weights_.swap();
  }
  [[nodiscard]] const model_config& config() const override { return config_; }
  [[nodiscard]] std::int64_t weight_bytes() const override { return weights_.bytes(); }
  [[nodiscard]] worker_pool& threads() override { return pool_; }

private:
  void check(std::span<const token_run> runs) const;
  void compute(std::span<const token_run> runs);
  void layer(std::int64_t index, const device_batch& b, at::Tensor& hidden);
  [[nodiscard]] at::Tensor attend(std::int64_t index, const device_batch& b,
                                  const at::Tensor& qkv);
  [[nodiscard]] at::Tensor attend_singles(const device_batch& b, const at::Tensor& q,
                                          const at::Tensor& keys, const at::Tensor& values) const;
  [[nodiscard]] at::Tensor attend_prompt(const device_batch::prompt& p, const at::Tensor& q,
                                         const at::Tensor& k, const at::Tensor& v,
                                         const at::Tensor& keys, const at::Tensor& values) const;
  [[nodiscard]] at::Tensor normed(const at::Tensor& x, const at::Tensor& weight) const {
    return at::rms_norm(x, {x.size(-1)}, weight, config_.rms_norm_eps);
  }
  void forget_stale(std::span<const token_run> runs, const device_batch& b);
  void read_back(const at::Tensor& logits);

  c10::Device device_;
  model_config config_;
  decoder_options options_;
  device_weights weights_;
  worker_pool pool_;
  at::Tensor cos_, sin_; ///< [max_context, dim / 2] fp32
  at::Tensor cache_;     ///< [layers, keys and values, blocks + 1, block_tokens · kv_heads · dim]
  std::set<std::int32_t> copied_; ///< blocks copied to, and not written since
  at::Tensor row_cos_, row_sin_; ///< of the batch: [N, 1, dim / 2]
  at::Tensor logits_;            ///< [W or more, V] fp32, host memory, pinned where that helps
};

/// One query row for each sequence over its own pages. The query heads that share a key head are
/// handled as that many rows of one head.
at::Tensor device_decoder::attend_singles(const device_batch& b, const at::Tensor& q,
                                          const at::Tensor& keys, const at::Tensor& values) const {
  const auto kv = config_.num_key_value_heads, dim = config_.head_dim, n = b.singles;
  const auto gathered = [&](const at::Tensor& pages) {
    return pages.index_select(0, b.tables).view({n, b.pages * block_tokens, kv, dim})
      .transpose(1, 2);
  };
  return at::scaled_dot_product_attention(
           q.narrow(0, 0, n).reshape({n, kv, config_.num_attention_heads / kv, dim}),
           gathered(keys), gathered(values), b.seen)
    .reshape({n, config_.query_size()});
}

/// Several rows of one sequence, over themselves and what is cached before them.
at::Tensor device_decoder::attend_prompt(const device_batch::prompt& p, const at::Tensor& q,
                                         const at::Tensor& k, const at::Tensor& v,
                                         const at::Tensor& keys, const at::Tensor& values) const {
  const auto kv = config_.num_key_value_heads, dim = config_.head_dim;
  const auto group = config_.num_attention_heads / kv;
  const auto context = [&](const at::Tensor& own, const at::Tensor& pages) {
    const auto whole = p.blocks.defined()
                         ? pages.index_select(0, p.blocks).view({-1, kv, dim})
                             .narrow(0, 0, p.context)
                         : own.narrow(0, p.row, p.rows);
    const auto heads = whole.transpose(0, 1).unsqueeze(0); // [1, kv, context, dim]
    return group == 1 ? heads : heads.repeat_interleave(group, 1);
  };
  const auto mask = p.seen.defined() ? std::optional(p.seen) : std::nullopt;
  const auto out = at::scaled_dot_product_attention(
    q.narrow(0, p.row, p.rows).transpose(0, 1).unsqueeze(0), context(k, keys), context(v, values),
    mask, 0.0, /*is_causal=*/!mask.has_value());
  return out[0].transpose(0, 1).reshape({p.rows, config_.query_size()});
}

at::Tensor device_decoder::attend(std::int64_t index, const device_batch& b,
                                  const at::Tensor& qkv) {
  const auto& w = weights_.layers[static_cast<std::size_t>(index)];
  const auto h = config_.num_attention_heads, kv = config_.num_key_value_heads;
  const auto dim = config_.head_dim, n = b.rows();
  const auto heads = qkv.view({n, h + 2 * kv, dim});
  auto turning = heads.narrow(1, 0, h + kv).to(at::kFloat);
  if (w.q_norm.defined())
    turning = at::cat({normed(turning.narrow(1, 0, h), w.q_norm),
                       normed(turning.narrow(1, h, kv), w.k_norm)}, 1);
  const auto turned = rotated(turning, row_cos_, row_sin_).to(qkv.scalar_type());
  const auto q = turned.narrow(1, 0, h), k = turned.narrow(1, h, kv), v = heads.narrow(1, h + kv, kv);
  const auto pages = cache_.select(0, index), keys = pages[0], values = pages[1];
  const auto store = [&](const at::Tensor& to, const at::Tensor& rows) {
    to.view({-1, kv * dim}).index_copy_(0, b.slots, rows.reshape({n, kv * dim}));
  };
  store(keys, k);
  store(values, v);
  std::vector<at::Tensor> parts;
  if (b.singles > 0)
    parts.push_back(attend_singles(b, q, keys, values));
  for (const auto& p : b.prompts)
    parts.push_back(attend_prompt(p, q, k, v, keys, values));
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

void device_decoder::layer(std::int64_t index, const device_batch& b, at::Tensor& hidden) {
  const auto& w = weights_.layers[static_cast<std::size_t>(index)];
  const auto type = weights_.compute_type();
  const auto qkv = w.qkv.product(normed(hidden, w.input_norm).to(type));
  hidden.add_(w.output.product(attend(index, b, qkv)));
  const auto halves = w.gate_up.product(normed(hidden, w.post_norm).to(type)).chunk(2, 1);
  hidden.add_(w.down.product(at::silu(halves[0]).mul_(halves[1])));
}

/// In host memory for the sampler; waits for the device.
void device_decoder::read_back(const at::Tensor& logits) {
  if (!logits_.defined() || logits_.size(0) < logits.size(0))
    logits_ = at::empty(logits.sizes(),
                        at::TensorOptions(at::kFloat).pinned_memory(device_.is_cuda()));
  logits_.narrow(0, 0, logits.size(0)).copy_(logits);
}

/// Zeros what other sequences left where masks will hide it: one that was not finite would else come
/// through, as 0 · NaN.
void device_decoder::forget_stale(std::span<const token_run> runs, const device_batch& b) {
  if (b.stale.size(0) > 0)
    cache_.view({config_.num_hidden_layers, 2, -1, config_.key_value_size()})
      .index_fill_(2, b.stale, 0);
  for (const auto& r : runs)
    copied_.erase(r.blocks[r.start / block_tokens]);
}

void device_decoder::compute(std::span<const token_run> runs) {
  const auto b = lay_out(runs, options_.blocks, copied_, device_);
  forget_stale(runs, b);
  row_cos_ = cos_.index_select(0, b.positions).unsqueeze(1);
  row_sin_ = sin_.index_select(0, b.positions).unsqueeze(1);
  auto hidden = weights_.embedding.index_select(0, b.tokens).to(at::kFloat);
  for (std::int64_t i = 0; i < config_.num_hidden_layers; ++i)
    layer(i, b, hidden);
  if (b.wanted.size(0) > 0)
    read_back(wide_product(normed(hidden.index_select(0, b.wanted), weights_.final_norm)
                             .to(weights_.compute_type()), weights_.head.t()));
  else
    wait_for(device_); // so that who measures a re-prefill measures all of it
}

void device_decoder::check(std::span<const token_run> runs) const {
  ensure(weights_.ready(), "the decoder computes before any weights were installed");
  for (const auto& r : runs)
    ensure(!r.tokens.empty()
             && r.start + static_cast<std::int64_t>(r.tokens.size()) <= options_.max_context,
           [&] { return "a run of " + std::to_string(r.tokens.size()) + " tokens at "
                        + std::to_string(r.start); });
}

void device_decoder::forward(std::span<const token_run> runs) {
  check(runs);
  if (runs.empty())
    return;
  const c10::InferenceMode guard;
  const c10::OptionalDeviceGuard here(device_.is_cuda() ? std::optional(device_) : std::nullopt);
  if (device_.is_cpu())
    at::set_num_threads(options_.threads);
  try {
    compute(runs);
  } catch (const c10::OutOfMemoryError& e) {
    throw user_error("generator: " + device_.str() + " has too little memory left for a step of "
                     + std::to_string(runs.size()) + " sequences; lower generator.max_batch, "
                     "prefill_chunk or kv_cache_tokens (" + e.what_without_backtrace() + ")");
  }
}

} // namespace

std::unique_ptr<decoder> make_device_decoder(c10::Device device, const model_config& config,
                                             const decoder_options& options) {
  const c10::InferenceMode guard;
  try {
    if (device.is_cuda() && options.weights == dtype::f8_e4m3 && !has_row_scales(device))
      throw user_error("generator.dtype: found \"fp8\", but " + device.str()
                       + " has no row-wise E4M3 products; set \"bf16\"");
    return std::make_unique<device_decoder>(device, config, options);
  } catch (const c10::OutOfMemoryError& e) {
    throw user_error("generator: two copies of the model's weights and a KV cache of "
                     + std::to_string(std::int64_t{options.blocks} * block_tokens)
                     + " tokens (generator.kv_cache_tokens) do not fit " + device.str() + " ("
                     + e.what_without_backtrace() + ")");
  }
}

decoder_factory decoders_on(c10::Device device) {
  return [device](const model_config& config, const decoder_options& options) {
    return make_device_decoder(device, config, options);
  };
}

} // namespace millrace::model
