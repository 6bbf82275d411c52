#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace millrace::model {

/// `dynamic` changes nothing up to max_position_embeddings, and no context is longer here.
enum class rope_kind : std::uint8_t { plain, linear, dynamic, llama3, yarn };

/// How rotary frequencies are stretched for longer contexts (config.json's `rope_scaling`).
struct rope_scaling {
  rope_kind kind = rope_kind::plain;
  double factor = 1;
  double low_freq_factor = 1; ///< llama3 only, as the next
  double high_freq_factor = 4;
  std::int64_t original_max_positions = 8192; ///< llama3 and yarn
  double beta_fast = 32; ///< yarn only, as those below: https://arxiv.org/abs/2309.00071
  double beta_slow = 1;
  bool truncate = true;        ///< the blend begins and ends at whole dimensions
  double attention_factor = 1; ///< of cos and sin

  bool operator==(const rope_scaling&) const = default;
};

/// The shape of a decoder-only transformer (RMSNorm, rotary embeddings, grouped-query attention,
/// SwiGLU), by the names of Hugging Face's config.json. Covers Llama, Qwen2 and Qwen3.
struct model_config {
  std::string model_type = "llama"; ///< llama, qwen2 or qwen3
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  rope_scaling scaling;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;    ///< always on in Qwen2
  bool output_bias = false; ///< of the attention's output projection
  bool mlp_bias = false;
  bool qk_norm = false;     ///< RMSNorm of each query and key head (Qwen3)
  double initializer_range = 0.02;
  std::vector<std::int32_t> eos_token_ids;
  std::int32_t bos_token_id = -1; ///< −1: none
  std::int32_t pad_token_id = -1;

  bool operator==(const model_config&) const = default;

  [[nodiscard]] std::int64_t query_size() const { return num_attention_heads * head_dim; }
  [[nodiscard]] std::int64_t key_value_size() const { return num_key_value_heads * head_dim; }

  /// Throws user_error where a size is missing or impossible. `where` names the source in the text.
  void validate(const std::string& where) const;
};

/// Reads config.json's fields; checks them. Throws user_error naming `where` and the field: a
/// missing or mistyped one, an architecture or feature that this transformer does not have.
model_config from_json(const nlohmann::json& json, const std::string& where);

/// The same, so that transformers and vLLM load it.
nlohmann::json to_json(const model_config& config);

/// folder/config.json, with folder/generation_config.json's end-of-sequence tokens where present.
model_config read_config(const std::filesystem::path& folder);

/// One parameter: Hugging Face's name and its shape, [out, in] for a matrix.
struct parameter_shape {
  std::string name;
  std::vector<std::int64_t> shape;
};

/// All parameters in the order in which they lie in memory: embedding, layers, final norm, head
/// (absent where tied). The q, k, v matrices of a layer are neighbours, as are gate and up.
std::vector<parameter_shape> parameter_shapes(const model_config& config);

/// Rotary inverse frequencies, head_dim / 2 of them, with scaling applied; computed in fp32 as
/// transformers does.
std::vector<float> rope_inverse_frequencies(const model_config& config);

/// cos and sin of position · frequency: [positions, head_dim / 2] each, row-major.
struct rope_tables {
  std::vector<float> cos, sin;
};
rope_tables make_rope_tables(const model_config& config, std::int64_t positions);

} // namespace millrace::model
