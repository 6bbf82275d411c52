#include "interrupted_run.hpp"

#include "runtime/error.hpp"
#include "runtime/model/cpu_decoder.hpp"

#include <catch2/catch.hpp>

#include <limits>

using namespace millrace;
using namespace millrace::generation;
using namespace millrace::test;

namespace {

std::vector<generation_task> tasks() {
  std::vector<generation_task> all;
  for (std::int64_t prompt = 0; prompt < 8; ++prompt)
    for (std::int32_t sample = 0; sample < 2; ++sample)
      all.push_back(task_for(prompt, sample, 20));
  return all;
}

/// With a new version after each fourth step.
results run(const std::vector<generation_task>& all, engine_options options) {
  auto e = engine_at(0, options);
  for (const auto& t : all)
    e->submit(t);
  return run_out_with(*e, 4, [&] { update_to(*e, e->current().value + 1); });
}

/// log p of r's generated tokens after its whole prefix, in a decoder of its own.
std::vector<float> recomputed(const rollout& r, dtype weights) {
  const auto length = static_cast<std::int32_t>(r.tokens.size());
  model::cpu_decoder d(engine_config(), model::blocks_for(length), length, 1, weights);
  fill(d.staging(), engine_config(), 0);
  d.swap();
  std::vector<std::int32_t> blocks;
  for (std::int32_t b = 0; b < model::blocks_for(length); ++b)
    blocks.push_back(b);
  std::vector<float> out;
  for (std::int32_t i = 0; i + 1 < length; ++i) {
    const model::token_run run{std::span(r.tokens).subspan(static_cast<std::size_t>(i), 1), i,
                               blocks.data(), true};
    d.forward({&run, 1});
    if (i + 1 < r.prompt_length)
      continue;
    double sum = 0;
    const auto* logits = d.logits(0);
    for (std::int64_t v = 0; v < engine_config().vocab_size; ++v)
      sum += std::exp(static_cast<double>(logits[v]));
    const auto next = static_cast<std::size_t>(r.tokens[static_cast<std::size_t>(i + 1)]);
    out.push_back(static_cast<float>(logits[next] - std::log(sum)));
  }
  return out;
}

} // namespace

TEST_CASE("narrow weights: a rollout is bitwise the same whatever it is batched with") {
  for (const auto type : {dtype::bf16, dtype::i8}) {
    engine_options alone{.max_batch = 1, .weights = type, .stop_tokens = {2}};
    const auto all = tasks();
    for (const auto& [batch, prefill, cache, threads] :
         {std::tuple{16, 256, 0, 1}, {5, 7, 0, 2}, {16, 64, 144, 3}}) {
      engine_options together{.max_batch = batch, .kv_cache_tokens = cache,
                              .prefill_tokens = prefill, .weights = type, .threads = threads,
                              .stop_tokens = {2}};
      auto e = engine_at(0, together);
      for (const auto& t : all)
        e->submit(t);
      results got;
      run_out(*e, got);
      for (const auto& t : all) {
        auto one = engine_at(0, alone);
        one->submit(t);
        results expected;
        run_out(*one, expected);
        REQUIRE(same(got.at(t.so_far.id), expected.at(t.so_far.id)));
      }
    }
  }
}

TEST_CASE("the log-prob is that of the distribution sampled from, in every precision") {
  for (const auto type : {dtype::f32, dtype::bf16, dtype::i8}) {
    auto e = engine_at(0, {.max_batch = 16, .weights = type, .stop_tokens = {2}});
    for (const auto& t : tasks())
      e->submit(t);
    results got;
    run_out(*e, got);
    for (const auto& [id, r] : got) {
      const auto logp = recomputed(r, type);
      for (std::size_t i = 0; i < logp.size(); ++i)
        REQUIRE(std::abs(logp[i] - r.behaviour_logp[static_cast<std::size_t>(r.prompt_length) + i])
                < 1e-5F);
    }
  }
}

TEST_CASE("narrow weights stay near the wide ones") {
  auto e = engine_at(0, {.max_batch = 16, .stop_tokens = {2}});
  for (const auto& t : tasks())
    e->submit(t);
  results got;
  run_out(*e, got);
  for (const auto& [type, bound] : {std::pair{dtype::bf16, 0.03}, {dtype::i8, 0.06}}) {
    double sum = 0, count = 0;
    for (const auto& [id, r] : got) {
      const auto logp = recomputed(r, type);
      for (std::size_t i = 0; i < logp.size(); ++i, ++count)
        sum += std::abs(static_cast<double>(
          logp[i] - r.behaviour_logp[static_cast<std::size_t>(r.prompt_length) + i]));
    }
    INFO("mean difference " << sum / count);
    REQUIRE(sum / count < bound);
    REQUIRE(sum > 0); // it really computes in the other precision
  }
}

TEST_CASE("narrow weights take new versions while they run") {
  for (const auto type : {dtype::bf16, dtype::i8}) {
    engine_options options{.max_batch = 16, .weights = type, .stop_tokens = {2}};
    const auto together = run(tasks(), options);
    options.threads = 2;
    const auto again = run(tasks(), options);
    REQUIRE(again.size() == together.size());
    for (const auto& [id, r] : together)
      REQUIRE(same(r, again.at(id)));
  }
}

TEST_CASE("weights that have diverged are reported, by every thread") {
  for (const auto type : {dtype::f32, dtype::bf16, dtype::i8})
    for (const std::int32_t threads : {1, 3}) {
      auto e = engine_at(0, {.max_batch = 16, .weights = type, .threads = threads,
                             .stop_tokens = {2}});
      for (const auto& t : tasks())
        e->submit(t);
      for (const auto& v : e->staging())
        if (v.name == "model.norm.weight")
          reinterpret_cast<float*>(v.data)[3] = std::numeric_limits<float>::quiet_NaN();
      e->install({1});
      REQUIRE_THROWS_AS(e->step(), user_error);
    }
}
