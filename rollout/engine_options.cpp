#include "rollout/batching_engine.hpp"
#include "runtime/error.hpp"

#include <chrono>
#include <string>

namespace millrace::generation {
namespace {

double steady_seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

/// Bytes of KV cache that are asked for at most when its size is left open.
constexpr std::int64_t default_cache_bytes = std::int64_t{4} << 30;

std::int64_t cache_bytes_per_token(const engine_options& o, const model::model_config& c) {
  const auto element = o.decoder && o.weights != dtype::f32 ? dtype::bf16 : dtype::f32;
  return c.num_hidden_layers * c.key_value_size() * 2
         * static_cast<std::int64_t>(size_of(element));
}

} // namespace

engine_options resolved(engine_options o, const model::model_config& config,
                        const model::tokenizer* tokens) {
  const auto need = [](bool ok, const std::string& what) {
    if (!ok)
      throw user_error("generator: " + what);
  };
  config.validate("model");
  need(o.max_batch >= 1, "max_batch is " + std::to_string(o.max_batch) + ", expected at least 1");
  need(o.threads >= 1 && o.threads <= 1024,
       "threads is " + std::to_string(o.threads) + ", expected 1 … 1024");
  need(o.prefill_tokens >= 1, "prefill_tokens is " + std::to_string(o.prefill_tokens)
                                + ", expected at least 1");
  const auto limit = static_cast<std::int32_t>(
    std::min<std::int64_t>(config.max_position_embeddings, 1 << 24));
  need(o.max_context >= 0 && o.max_context <= limit,
       "max_context is " + std::to_string(o.max_context) + ", but the model has "
         + std::to_string(limit) + " positions");
  if (o.max_context == 0)
    o.max_context = limit;
  const auto one = std::int64_t{model::blocks_for(o.max_context)} * model::block_tokens;
  if (o.kv_cache_tokens == 0)
    o.kv_cache_tokens = std::max(
      one, std::min(one * o.max_batch, default_cache_bytes / cache_bytes_per_token(o, config)));
  need(o.kv_cache_tokens >= one,
       "kv_cache_tokens is " + std::to_string(o.kv_cache_tokens)
         + ", but one sequence of max_context needs " + std::to_string(one));
  need(!tokens || tokens->vocabulary_size() <= config.vocab_size,
       "the tokenizer has " + std::to_string(tokens ? tokens->vocabulary_size() : 0)
         + " tokens, the model only " + std::to_string(config.vocab_size));
  if (o.stop_tokens.empty())
    o.stop_tokens = tokens ? tokens->stop_tokens() : config.eos_token_ids;
  if (!o.clock)
    o.clock = steady_seconds;
  return o;
}

} // namespace millrace::generation
