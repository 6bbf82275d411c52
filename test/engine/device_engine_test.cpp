// The engine over the decoder for devices beside the engine over the CPU's.

#include "runtime/model/device_decoder.hpp"
#include "runtime/model/kv_cache.hpp"
#include "runtime/model/weight_transfer.hpp"

#include "interrupted_run.hpp"

#include "runtime/error.hpp"
#include "runtime/model/cpu_decoder.hpp"

#include <catch2/catch.hpp>

#include <algorithm>

using namespace millrace;
using namespace millrace::generation;
using namespace millrace::test;

namespace {

const model::decoder_factory by_cpu = [](const model::model_config& config,
                                         const model::decoder_options& o) {
  return std::make_unique<model::cpu_decoder>(config, o.blocks, o.max_context, o.threads, o.weights);
};
const auto by_device = model::decoders_on(c10::kCPU);

/// Fills it through fp32, as a checkpoint or the trainer's weights come.
void refill(engine& e, std::int32_t v, const model::model_config& config) {
  auto wide = make_engine({.max_batch = 1}, config, nullptr);
  fill(wide->staging(), config, static_cast<std::uint64_t>(v));
  model::transfer_weights(wide->staging(), e.staging());
  e.install({v});
}

/// Every task's rollout, with new weights after each `every` steps (0: never).
results run(const model::decoder_factory& by, engine_options options,
            const model::model_config& config, float temperature, int every) {
  options.decoder = by;
  options.stop_tokens = {2};
  auto e = make_engine(options, config, nullptr);
  refill(*e, 0, config);
  submit(*e, 10, 3, 25, temperature);
  auto got = run_out_with(*e, every, [&] { refill(*e, e->current().value + 1, config); });
  const auto count = e->statistics();
  REQUIRE(count.kv_blocks_free == count.kv_blocks);
  return got;
}

} // namespace

TEST_CASE("both decoders answer alike, interrupted, chunked, preempted") {
  struct variant {
    std::int32_t batch, prefill;
    std::int64_t cache;
    kv_policy kv;
    int every;
  };
  for (const char* type : {"llama", "qwen2", "qwen3"})
    for (const auto& v : {variant{16, 256, 0, kv_policy::recompute, 0},
                          {30, 7, 0, kv_policy::recompute, 5}, {30, 256, 0, kv_policy::keep, 5},
                          {16, 64, 144, kv_policy::recompute, 9}})
      for (const float temperature : {0.0F, 1.0F}) {
        const auto config = engine_config(type);
        const engine_options o{.max_batch = v.batch, .kv_cache_tokens = v.cache,
                               .prefill_tokens = v.prefill, .kv = v.kv};
        const auto expected = run(by_cpu, o, config, temperature, v.every);
        const auto found = run(by_device, o, config, temperature, v.every);
        INFO(type << ", batch " << v.batch << ", temperature " << temperature);
        REQUIRE(found.size() == expected.size());
        for (const auto& [id, r] : expected) {
          INFO(to_string(id));
          REQUIRE(same(found.at(id), r));
        }
      }
}

TEST_CASE("narrow precisions on a device: the log-prob is that of what was sampled from") {
  // What is computed in other company rounds differently; in 8 bits a step between two numbers is large.
  for (const auto& [type, bound] : {std::pair{dtype::bf16, 0.01}, {dtype::f8_e4m3, 0.04}}) {
    const auto config = engine_config();
    const auto got = run(by_device, {.max_batch = 16, .prefill_tokens = 9, .weights = type}, config,
                         1.0F, 0);
    const auto wide = run(by_cpu, {.max_batch = 16}, config, 1.0F, 0);
    auto d = by_device(config, {12, 96, 1, type});
    auto source = make_engine({.max_batch = 1}, config, nullptr);
    fill(source->staging(), config, 0);
    model::transfer_weights(source->staging(), d->staging());
    d->swap();
    std::vector<std::int32_t> blocks;
    for (std::int32_t b = 0; b < 12; ++b)
      blocks.push_back(11 - b);
    double sum = 0, count = 0;
    for (const auto& [id, r] : got)
      for (auto i = r.prompt_length; i < static_cast<std::int32_t>(r.tokens.size()); ++i) {
        const model::token_run run{std::span(r.tokens).first(static_cast<std::size_t>(i)), 0,
                                   blocks.data(), true};
        d->forward({&run, 1});
        double whole = 0;
        for (std::int64_t v = 0; v < config.vocab_size; ++v)
          whole += std::exp(static_cast<double>(d->logits(0)[v]));
        const auto at = static_cast<std::size_t>(i);
        sum += std::abs(d->logits(0)[r.tokens[at]] - std::log(whole) - r.behaviour_logp[at]);
        ++count;
      }
    INFO("mean difference " << sum / count);
    REQUIRE(sum / count < bound);
    REQUIRE(std::any_of(wide.begin(), wide.end(), [&](const auto& entry) {
      return !same(entry.second, got.at(entry.first)); // it is another precision
    }));
  }
}

TEST_CASE("a device's cache is as large as asked for, and its precisions are its own") {
  REQUIRE_THROWS_AS(make_engine({.weights = dtype::i8, .decoder = by_device}, engine_config(),
                                nullptr), invariant_error);
  REQUIRE_THROWS_AS(make_engine({.weights = dtype::f8_e4m3, .decoder = by_cpu}, engine_config(),
                                nullptr), invariant_error);
  const auto blocks = [](const engine_options& o) {
    return make_engine(o, engine_config(), nullptr)->statistics().kv_blocks;
  };
  REQUIRE(blocks({.max_batch = 3, .weights = dtype::bf16, .decoder = by_device}) == 3 * 96 / 16);
  REQUIRE(blocks({.kv_cache_tokens = 160, .decoder = by_device}) == 10);
}
