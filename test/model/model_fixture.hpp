#pragma once

#include "runtime/error.hpp"
#include "runtime/model/kernels.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/random.hpp"
#include "runtime/scratch_folder.hpp"
#include "test/model/model_families.hpp"

#include <cstdlib>
#include <filesystem>
#include <functional>
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
  c.vocab_size = 37;
  c.hidden_size = 40;
  c.intermediate_size = 56;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 6;
  c.num_key_value_heads = 2;
  c.head_dim = 12;
  c.max_position_embeddings = 96;
  c.initializer_range = 0.2; // far from uniform, so that mistakes show
  return of_family(c, type);
}

inline std::vector<std::int32_t> random_tokens(random_stream& draws, std::int64_t n,
                                               std::int64_t vocabulary) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < n; ++i)
    tokens.push_back(static_cast<std::int32_t>(draws.below(static_cast<std::uint64_t>(vocabulary))));
  return tokens;
}

/// The instruction sets' kernels that this processor can run.
inline std::vector<const model::kernel_table*> kernel_tables() {
  std::vector<const model::kernel_table*> all;
  for (const char* name : {"generic", "avx2", "avx512", "avx512_vnni"})
    if (const auto* t = model::kernels_named(name))
      all.push_back(t);
  return all;
}

inline std::vector<float> normal_numbers(random_stream& draws, std::int64_t n) {
  std::vector<float> x;
  for (std::int64_t i = 0; i < n; ++i)
    x.push_back(draws.normal());
  return x;
}

/// What a user_error said; empty where there was none.
inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const user_error& e) {
    return e.what();
  }
  return "";
}

} // namespace millrace::test
