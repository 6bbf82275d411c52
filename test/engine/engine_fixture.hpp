#pragma once

#include "rollout/engine.hpp"
#include "runtime/model/checkpoint.hpp"
#include "runtime/model/safetensors.hpp"
#include "runtime/random.hpp"
#include "test/model/model_families.hpp"

#ifdef MILLRACE_TEST_DEVICE_DECODER // the same tests once more, over the decoder for devices
#include "runtime/model/device_decoder.hpp"
#endif

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace millrace::test {

inline model::model_config engine_config(const std::string& type = "llama") {
  model::model_config c;
  c.vocab_size = 31;
  c.hidden_size = 32;
  c.intermediate_size = 40;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 12;
  c.max_position_embeddings = 96;
  c.initializer_range = 0.3;
  return of_family(c, type);
}

/// Random weights of a seed into an engine's staging buffers, in its precision.
inline void fill(const std::vector<tensor_view>& staging, const model::model_config& config,
                 std::uint64_t seed) {
  std::vector<std::vector<float>> memory;
  std::vector<tensor_view> whole;
  for (const auto& p : model::parameter_shapes(config)) {
    tensor_view v{p.name, dtype::f32, p.shape, nullptr};
    memory.emplace_back(static_cast<std::size_t>(v.elements()));
    v.data = reinterpret_cast<std::byte*>(memory.back().data());
    whole.push_back(v);
  }
  model::initialise(config, whole, seed);
  std::map<std::string, const tensor_view*> by_name;
  for (const auto& v : staging)
    by_name[v.name] = &v;
  for (const auto& from : whole) {
    const auto& to = *by_name.at(from.name);
    if (to.type != dtype::i8) {
      model::convert_elements(from.data, dtype::f32, to.data, to.type, from.elements());
      continue;
    }
    const auto* x = reinterpret_cast<const float*>(from.data);
    auto* scales = reinterpret_cast<float*>(by_name.at(from.name + "_scale")->data);
    const auto width = from.shape[1];
    for (std::int64_t r = 0; r < from.shape[0]; ++r) {
      float largest = 0;
      for (std::int64_t i = 0; i < width; ++i)
        largest = std::max(largest, std::abs(x[r * width + i]));
      scales[r] = largest / 127;
      for (std::int64_t i = 0; i < width; ++i)
        reinterpret_cast<std::int8_t*>(to.data)[r * width + i]
          = static_cast<std::int8_t>(std::nearbyint(x[r * width + i] / scales[r]));
    }
  }
}

#ifdef MILLRACE_TEST_DEVICE_DECODER
inline const model::decoder_factory tested_decoder = model::decoders_on(c10::kCPU);
/// It rounds differently in other company.
constexpr float same_logp = 1e-4F;
#else
inline const model::decoder_factory tested_decoder; // the CPU's
constexpr float same_logp = 0;
#endif

/// An engine whose version v has the weights of seed v.
inline std::unique_ptr<generation::engine>
engine_at(std::int32_t v, generation::engine_options options,
          const model::model_config& config = engine_config()) {
  if (!options.decoder)
    options.decoder = tested_decoder;
  auto e = generation::make_engine(options, config, nullptr);
  fill(e->staging(), config, static_cast<std::uint64_t>(v));
  e->install({v});
  return e;
}

inline swap_report update_to(generation::engine& e, std::int32_t v,
                             const model::model_config& config = engine_config()) {
  fill(e.staging(), config, static_cast<std::uint64_t>(v));
  return e.install({v});
}

/// Sample `sample` of a prompt whose length and tokens depend on `prompt` only.
inline generation_task task_for(std::int64_t prompt, std::int32_t sample,
                                std::int32_t max_tokens = 30, std::int32_t prompt_length = 0) {
  random_stream draws(77, static_cast<std::uint64_t>(prompt));
  generation_task t;
  auto& r = t.so_far;
  r.id = {prompt, sample};
  r.prompt_id = prompt;
  r.prompt_length = prompt_length > 0 ? prompt_length : 1 + static_cast<std::int32_t>(draws.below(40));
  for (std::int32_t i = 0; i < r.prompt_length; ++i)
    r.tokens.push_back(3 + static_cast<std::int32_t>(draws.below(28)));
  r.behaviour_logp.assign(r.tokens.size(), 0);
  r.versions.assign(r.tokens.size(), -1);
  t.sampling.max_tokens = max_tokens;
  t.sampling.seed = 5;
  return t;
}

using results = std::map<rollout_id, rollout>;

/// Steps until nothing is left; fails the test by exception when that takes too long.
inline void run_out(generation::engine& e, results& into, int most = 10000) {
  for (int i = 0; e.running() + e.waiting() > 0; ++i) {
    if (i > most)
      throw std::runtime_error("the engine does not come to an end");
    for (auto& r : e.step())
      into.emplace(r.id, std::move(r));
  }
}

/// The same log-probs, bit for bit over the CPU's decoder.
inline bool same_log_probs(const rollout& a, const rollout& b) {
  return std::ranges::equal(a.behaviour_logp, b.behaviour_logp,
                            [](float x, float y) { return std::abs(x - y) <= same_logp; });
}

/// The same tokens, versions, end and log-probs.
inline bool same(const rollout& a, const rollout& b) {
  return a.tokens == b.tokens && a.versions == b.versions && a.finish == b.finish
         && same_log_probs(a, b);
}

} // namespace millrace::test
