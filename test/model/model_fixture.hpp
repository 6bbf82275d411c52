#pragma once

#include "runtime/model/model_config.hpp"
#include "runtime/random.hpp"
#include "runtime/scratch_folder.hpp"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace millrace::test {

/// A folder of its own, removed at the end.
struct scratch_folder : millrace::scratch_folder {
  scratch_folder() : millrace::scratch_folder("millrace-test") {}
};

/// A small model of each family, with sizes that are no multiple of the kernels' widths.
inline model::model_config small_config(const std::string& type = "llama") {
  model::model_config c;
  c.model_type = type;
  c.vocab_size = 37;
  c.hidden_size = 40;
  c.intermediate_size = 56;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 6;
  c.num_key_value_heads = 2;
  c.head_dim = 12;
  c.max_position_embeddings = 96;
  c.initializer_range = 0.2; // far from uniform, so that mistakes show
  c.qkv_bias = type == "qwen2";
  c.qk_norm = type == "qwen3";
  c.tie_word_embeddings = type == "qwen3";
  return c;
}

inline std::vector<std::int32_t> random_tokens(random_stream& draws, std::int64_t n,
                                               std::int64_t vocabulary) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < n; ++i)
    tokens.push_back(static_cast<std::int32_t>(draws.below(static_cast<std::uint64_t>(vocabulary))));
  return tokens;
}

} // namespace millrace::test
