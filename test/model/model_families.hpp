#pragma once

#include "runtime/model/model_config.hpp"

#include <string>
#include <utility>

namespace millrace::test {

/// A model of these sizes as "llama", "qwen2" or "qwen3" has it.
inline model::model_config of_family(model::model_config sizes, const std::string& type) {
  auto c = std::move(sizes);
  c.model_type = type;
  c.qkv_bias = type == "qwen2";
  c.qk_norm = type == "qwen3";
  c.tie_word_embeddings = type == "qwen3";
  return c;
}

} // namespace millrace::test
