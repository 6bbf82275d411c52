#include "runtime/error.hpp"
#include "weightsync/layout.hpp"

#include <algorithm>

namespace millrace::weightsync {

namespace {

// Collects the placements of one rank.
class llama_placer {
public:
  llama_placer(const llama_shape& model, const tensor_parallel& tp) : model_(model), tp_(tp) {
    ensure(model.heads > 0 && model.kv_heads > 0 && model.heads % model.kv_heads == 0, [&] {
      return std::to_string(model.heads) + " heads, " + std::to_string(model.kv_heads)
             + " kv heads";
    });
    auto heads = split(model.heads, 1, tp.rank, tp.ranks);
    auto group = model.heads / model.kv_heads; // query heads that share one kv head
    query_rows_ = {heads.begin * model.head_dim, heads.end * model.head_dim};
    if (heads.begin < heads.end)
      kv_rows_ = {heads.begin / group * model.head_dim,
                  ((heads.end - 1) / group + 1) * model.head_dim};
    inner_ = split(model.intermediate, 1, tp.rank, tp.ranks);
    vocabulary_ = split(model.vocabulary, 1, tp.rank, tp.ranks);
  }

  layout place() {
    auto [v, h] = std::pair{model_.vocabulary, model_.hidden};
    alone("model.embed_tokens.weight", {v, h}, 0, vocabulary_);
    for (std::int32_t i = 0; i < model_.layers; ++i)
      layer("model.layers." + std::to_string(i) + ".");
    everywhere("model.norm.weight", {h});
    if (!model_.tied_embeddings)
      alone("lm_head.weight", {v, h}, 0, vocabulary_);
    return std::move(result_);
  }

private:
  void layer(const std::string& at) {
    auto h = model_.hidden;
    everywhere(at + "input_layernorm.weight", {h});
    attention(at + "self_attn.");
    everywhere(at + "post_attention_layernorm.weight", {h});
    fused({at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight"},
          {{model_.intermediate, h}, {model_.intermediate, h}}, {inner_, inner_},
          tp_.fused_gate_up ? at + "mlp.gate_up_proj.weight" : "");
    alone(at + "mlp.down_proj.weight", {h, model_.intermediate}, 1, inner_);
  }

  void attention(const std::string& at) {
    auto h = model_.hidden;
    auto q = model_.heads * model_.head_dim;
    auto kv = model_.kv_heads * model_.head_dim;
    std::vector<index_range> rows = {query_rows_, kv_rows_, kv_rows_};
    fused({at + "q_proj.weight", at + "k_proj.weight", at + "v_proj.weight"},
          {{q, h}, {kv, h}, {kv, h}}, rows, tp_.fused_qkv ? at + "qkv_proj.weight" : "");
    if (model_.attention_bias)
      fused({at + "q_proj.bias", at + "k_proj.bias", at + "v_proj.bias"}, {{q}, {kv}, {kv}}, rows,
            tp_.fused_qkv ? at + "qkv_proj.bias" : "");
    if (model_.qk_norm) {
      everywhere(at + "q_norm.weight", {model_.head_dim});
      everywhere(at + "k_norm.weight", {model_.head_dim});
    }
    alone(at + "o_proj.weight", {h, q}, 1, query_rows_);
  }

  void everywhere(const std::string& name, const tensor_shape& shape) {
    result_.push_back({name, shape, whole(shape), name, 0});
  }

  void alone(const std::string& name, const tensor_shape& shape, std::int32_t axis,
             index_range range) {
    if (range.begin < range.end)
      result_.push_back({name, shape, along(shape, axis, range.begin, range.end), name, 0});
  }

  // One after the other in the tensor `into`, or each on its own when that is empty.
  void fused(const std::vector<std::string>& names, const std::vector<tensor_shape>& shapes,
             const std::vector<index_range>& rows, const std::string& into) {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (rows[i].begin == rows[i].end)
        continue;
      auto part = along(shapes[i], 0, rows[i].begin, rows[i].end);
      result_.push_back({names[i], shapes[i], part, into.empty() ? names[i] : into,
                         into.empty() ? 0 : at});
      at += part.count;
    }
  }

  const llama_shape& model_;
  const tensor_parallel& tp_;
  index_range query_rows_, kv_rows_, inner_, vocabulary_;
  layout result_;
};

} // namespace

layout llama_layout(const llama_shape& model, const tensor_parallel& tp) {
  return llama_placer(model, tp).place();
}

} // namespace millrace::weightsync
