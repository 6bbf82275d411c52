#include "runtime/model/cpu_decoder.hpp"

#include "runtime/error.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace millrace::model {
namespace {

/// Below this many multiplications a loop is not worth waking another thread for.
constexpr std::int64_t worth_splitting = 1 << 16;

void grow(std::vector<float>& v, std::int64_t size) {
  if (static_cast<std::int64_t>(v.size()) < size)
    v.resize(static_cast<std::size_t>(size));
}

} // namespace

cpu_decoder::cpu_decoder(const model_config& config, std::int32_t blocks, std::int32_t max_context,
                         int threads, dtype weights)
    : config_(config), kernels_(kernels()), weights_(config, kernels_, weights), pool_(threads),
      rope_(make_rope_tables(config, max_context)), max_context_(max_context),
      value_width_((config.head_dim + 15) / 16 * 16),
      head_stride_(block_tokens * (config.head_dim + value_width_)),
      block_stride_(config.num_key_value_heads * head_stride_), layer_stride_(blocks * block_stride_),
      cache_(static_cast<std::size_t>(config.num_hidden_layers * layer_stride_) * 4,
             "the KV cache (generator.kv_cache_tokens)") {}

void cpu_decoder::round_activations(const float* a, std::int64_t a_stride, const packed_matrix& w,
                                    std::int64_t rows) {
  const auto stride = narrow_row_bytes(w.k);
  if (static_cast<std::int64_t>(rounded_.size()) < rows * stride)
    rounded_.resize(static_cast<std::size_t>(rows * stride));
  const auto round = w.type == dtype::bf16 ? kernels_.round_rows : kernels_.quantise_rows;
  pool_.split(rows, 1 + worth_splitting / (8 * w.k),
              [&](std::int64_t first, std::int64_t last, int) {
                round(a + first * a_stride, a_stride, rounded_.data() + first * stride, stride,
                      last - first, w.k);
              });
}

void cpu_decoder::product(const float* a, std::int64_t a_stride, const packed_matrix& w, float* c,
                      std::int64_t c_stride, std::int64_t rows, bool add_to_c) {
  // Six strips are whole tiles of every kernel.
  constexpr std::int64_t together = 6;
  const auto strips = strips_for(w.n), grain = 1 + worth_splitting / (rows * w.k * 16 * together);
  const auto over_strips = [&](const auto& gemm, const auto& task) {
    pool_.split((strips + together - 1) / together, grain,
                [&](std::int64_t first, std::int64_t last, int) {
                  gemm(task, first * together, std::min(last * together, strips));
                });
  };
  if (w.type == dtype::f32) {
    over_strips(kernels_.gemm,
                gemm_task{a, a_stride, reinterpret_cast<const float*>(w.data), w.bias, c, c_stride,
                          rows, w.k, w.n, add_to_c});
    return;
  }
  round_activations(a, a_stride, w, rows);
  over_strips(w.type == dtype::bf16 ? kernels_.gemm_bf16 : kernels_.gemm_i8,
              narrow_gemm_task{rounded_.data(), narrow_row_bytes(w.k), w.data, w.scales, w.bias, c,
                               c_stride, rows, w.k, w.n, add_to_c});
}

void cpu_decoder::store_keys_and_values(std::int64_t layer, std::int64_t index) {
  const auto& r = rows_[static_cast<std::size_t>(index)];
  const auto width = config_.query_size() + 2 * config_.key_value_size();
  const auto* k = qkv_.data() + index * width + config_.query_size();
  const auto* v = k + config_.key_value_size();
  const auto slot = r.position % block_tokens;
  auto* block = block_at(layer, r.blocks[r.position / block_tokens]);
  for (std::int64_t h = 0; h < config_.num_key_value_heads; ++h, block += head_stride_) {
    for (std::int64_t i = 0; i < config_.head_dim; ++i)
      block[i * block_tokens + slot] = *k++;
    auto* values = block + config_.head_dim * block_tokens + slot * value_width_;
    std::memcpy(values, v, static_cast<std::size_t>(config_.head_dim) * sizeof(float));
    std::fill(values + config_.head_dim, values + value_width_, 0.0F);
    v += config_.head_dim;
  }
}

void cpu_decoder::rotate_and_store(std::int64_t layer, std::int64_t rows) {
  const auto& w = weights_.current().layers[static_cast<std::size_t>(layer)];
  const auto heads = config_.num_attention_heads, kv_heads = config_.num_key_value_heads;
  const auto dim = config_.head_dim, width = config_.query_size() + 2 * config_.key_value_size();
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  pool_.split(rows, 1 + worth_splitting / (8 * width),
              [&](std::int64_t first, std::int64_t last, int) {
    for (auto i = first; i < last; ++i) {
      const auto position = rows_[static_cast<std::size_t>(i)].position;
      auto *q = qkv_.data() + i * width, *k = q + heads * dim;
      if (w.q_norm) {
        kernels_.rms_norm(q, dim, w.q_norm, q, dim, heads, dim, eps);
        kernels_.rms_norm(k, dim, w.k_norm, k, dim, kv_heads, dim, eps);
      }
      kernels_.rope(q, heads + kv_heads, dim, rope_.cos.data() + position * (dim / 2),
                    rope_.sin.data() + position * (dim / 2));
      store_keys_and_values(layer, i);
    }
  });
}

void cpu_decoder::attend(std::int64_t layer, std::int64_t rows) {
  const auto heads = config_.num_attention_heads, kv_heads = config_.num_key_value_heads;
  const auto dim = config_.head_dim, width = config_.query_size() + 2 * config_.key_value_size();
  rotate_and_store(layer, rows);
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < rows; ++i)
    longest = std::max<std::int64_t>(longest, rows_[static_cast<std::size_t>(i)].position + 1);
  const auto group = heads / kv_heads;
  const auto scratch = group * ((longest + 15) / 16 * 16);
  grow(scratch_, scratch * pool_.threads());
  const auto scale = 1.0F / std::sqrt(static_cast<float>(dim));
  const auto per_row = longest * dim * group * 2;
  pool_.split(rows * kv_heads, 1 + worth_splitting / per_row,
              [&](std::int64_t first, std::int64_t last, int thread) {
    for (auto i = first; i < last; ++i) {
      const auto index = i / kv_heads, head = i % kv_heads;
      const auto& r = rows_[static_cast<std::size_t>(index)];
      const auto* block0 = block_at(layer, 0) + head * head_stride_;
      kernels_.attend({qkv_.data() + index * width + head * group * dim,
                       mixed_.data() + index * heads * dim + head * group * dim, group, dim, scale,
                       r.blocks, r.position + 1, block0, block0 + dim * block_tokens,
                       block_stride_, scratch_.data() + thread * scratch});
    }
  });
}

void cpu_decoder::normalise(const float* weight, std::int64_t rows) {
  const auto d = config_.hidden_size;
  pool_.split(rows, 1 + worth_splitting / (8 * d),
              [&](std::int64_t first, std::int64_t last, int) {
                kernels_.rms_norm(hidden_.data() + first * d, d, weight, normed_.data() + first * d,
                                  d, last - first, d, static_cast<float>(config_.rms_norm_eps));
              });
}

void cpu_decoder::layer(std::int64_t index, std::int64_t rows) {
  const auto& w = weights_.current().layers[static_cast<std::size_t>(index)];
  const auto d = config_.hidden_size, ff = config_.intermediate_size, q = config_.query_size();
  normalise(w.input_norm, rows);
  product(normed_.data(), d, w.qkv, qkv_.data(), w.qkv.n, rows, false);
  attend(index, rows);
  product(mixed_.data(), q, w.output, hidden_.data(), d, rows, true);
  normalise(w.post_norm, rows);
  product(normed_.data(), d, w.gate_up, gate_up_.data(), 2 * ff, rows, false);
  pool_.split(rows, 1 + worth_splitting / (16 * ff),
              [&](std::int64_t first, std::int64_t last, int) {
                kernels_.swiglu(gate_up_.data() + first * 2 * ff, 2 * ff,
                                activated_.data() + first * ff, ff, last - first, ff);
              });
  product(activated_.data(), ff, w.down, hidden_.data(), d, rows, true);
}

void cpu_decoder::embed(std::int64_t rows) {
  const auto d = config_.hidden_size;
  pool_.split(rows, 1 + worth_splitting / (16 * d),
              [&](std::int64_t first, std::int64_t last, int) {
                for (auto i = first; i < last; ++i)
                  weights_.current().embedding.unpack(rows_[static_cast<std::size_t>(i)].token,
                                                      hidden_.data() + i * d);
              });
}

void cpu_decoder::forward(std::span<const token_run> runs) {
  ensure(weights_.ready(), "the decoder computes before any weights were installed");
  rows_.clear();
  wanted_.clear();
  for (const auto& run : runs) {
    ensure(!run.tokens.empty()
             && run.start + static_cast<std::int64_t>(run.tokens.size()) <= max_context_,
           [&] { return "a run of " + std::to_string(run.tokens.size()) + " tokens at "
                        + std::to_string(run.start); });
    auto position = run.start;
    for (const auto token : run.tokens)
      rows_.push_back({run.blocks, token, position++});
    if (run.wants_logits)
      wanted_.push_back(static_cast<std::int64_t>(rows_.size()) - 1);
  }
  const auto rows = static_cast<std::int64_t>(rows_.size());
  const auto d = config_.hidden_size, ff = config_.intermediate_size;
  grow(hidden_, rows * d);
  grow(normed_, rows * d);
  grow(qkv_, rows * (config_.query_size() + 2 * config_.key_value_size()));
  grow(mixed_, rows * config_.query_size());
  grow(gate_up_, rows * 2 * ff);
  grow(activated_, rows * ff);
  const auto& w = weights_.current();
  embed(rows);
  for (std::int64_t i = 0; i < config_.num_hidden_layers; ++i)
    layer(i, rows);
  const auto wanted = static_cast<std::int64_t>(wanted_.size());
  grow(logits_, wanted * config_.vocab_size);
  for (std::int64_t i = 0; i < wanted; ++i)
    kernels_.rms_norm(hidden_.data() + wanted_[static_cast<std::size_t>(i)] * d, d, w.final_norm,
                      normed_.data() + i * d, d, 1, d, static_cast<float>(config_.rms_norm_eps));
  if (wanted > 0)
    product(normed_.data(), d, w.head, logits_.data(), config_.vocab_size, wanted, false);
}

void cpu_decoder::copy_block(std::int32_t from, std::int32_t to) {
  for (std::int64_t i = 0; i < config_.num_hidden_layers; ++i)
    std::memcpy(block_at(i, to), block_at(i, from),
                static_cast<std::size_t>(block_stride_) * sizeof(float));
}

} // namespace millrace::model
