#include "runtime/model/tensor_parallel.hpp"

#include "runtime/error.hpp"

namespace millrace::model {
namespace {

std::int64_t vocabulary_begin(const model_config& c, std::int64_t rank, std::int64_t size) {
  return c.vocab_size * rank / size;
}

} // namespace

model_config local_config(const model_config& whole, std::int64_t rank, std::int64_t size) {
  const auto check = [&](const char* what, std::int64_t n) {
    if (n % size != 0)
      throw user_error("trainer.parallel.tp: found " + std::to_string(size) + ", but the model has "
                       + std::to_string(n) + " " + what + "; expected a divisor of that");
  };
  check("query heads", whole.num_attention_heads);
  check("key heads", whole.num_key_value_heads);
  check("columns in its feed-forward layers", whole.intermediate_size);
  if (whole.vocab_size < size)
    throw user_error("trainer.parallel.tp: found " + std::to_string(size)
                     + ", more than the vocabulary has tokens, " + std::to_string(whole.vocab_size));
  auto c = whole;
  c.num_attention_heads /= size;
  c.num_key_value_heads /= size;
  c.intermediate_size /= size;
  c.vocab_size = vocabulary_begin(whole, rank + 1, size) - vocabulary_begin(whole, rank, size);
  c.eos_token_ids.clear(); // of the whole vocabulary
  c.bos_token_id = c.pad_token_id = -1;
  return c;
}

parameter_slice slice_of(const model_config& whole, const std::string& name, std::int64_t rank,
                         std::int64_t size) {
  const auto ends = [&](const char* text) { return name.ends_with(text); };
  const auto part = [&](int dimension, std::int64_t n) {
    return parameter_slice{dimension, n / size * rank, n / size};
  };
  if (ends("embed_tokens.weight") || ends("lm_head.weight")) {
    const auto begin = vocabulary_begin(whole, rank, size);
    return {0, begin, vocabulary_begin(whole, rank + 1, size) - begin};
  }
  if (ends("q_proj.weight") || ends("q_proj.bias"))
    return part(0, whole.query_size());
  if (ends("k_proj.weight") || ends("k_proj.bias") || ends("v_proj.weight") || ends("v_proj.bias"))
    return part(0, whole.key_value_size());
  if (ends("gate_proj.weight") || ends("gate_proj.bias") || ends("up_proj.weight")
      || ends("up_proj.bias"))
    return part(0, whole.intermediate_size);
  if (ends("o_proj.weight"))
    return part(1, whole.query_size());
  if (ends("down_proj.weight"))
    return part(1, whole.intermediate_size);
  parameter_slice all;
  all.partial_gradient = ends("q_norm.weight") || ends("k_norm.weight");
  return all;
}

} // namespace millrace::model
