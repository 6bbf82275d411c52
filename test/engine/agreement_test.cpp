#include "runtime/model/transformer.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include "interrupted_run.hpp"

#include <catch2/catch.hpp>

#include <algorithm>

using namespace millrace;
using namespace millrace::generation;
using namespace millrace::test;

namespace {

/// log p of every token after the first under the trainer's forward pass, at its version's weights:
/// what the behaviour log-probs must equal.
double worst_difference(const rollout& r, const model::model_config& config, float temperature) {
  const c10::NoGradGuard guard;
  double worst = 0;
  for (std::int32_t v = r.oldest().value; v <= r.youngest().value; ++v) {
    if (std::find(r.versions.begin(), r.versions.end(), v) == r.versions.end())
      continue;
    model::transformer t(config);
    t.initialise(static_cast<std::uint64_t>(v));
    const auto logp = at::log_softmax(t.logits(model::pack({r.tokens})) / temperature, -1)
                        .contiguous();
    for (std::size_t i = 1; i < r.tokens.size(); ++i)
      if (r.versions[i] == v) {
        const double expected =
          logp.const_data_ptr<float>()[static_cast<std::int64_t>(i - 1) * config.vocab_size
                                       + r.tokens[i]];
        worst = std::max(worst, std::abs(expected - static_cast<double>(r.behaviour_logp[i])));
      }
  }
  return worst;
}

} // namespace

TEST_CASE("the generator's log-probs are the trainer's, over interruptions too") {
  at::set_num_threads(1);
  for (const char* type : {"llama", "qwen2", "qwen3"})
    for (const float temperature : {1.0F, 0.6F}) {
      const auto config = engine_config(type);
      auto e = engine_at(0, {.max_batch = 8, .stop_tokens = {2}}, config);
      submit(*e, 5, 3, 40, temperature);
      const auto got = run_out_with(*e, 7, [&] {
        if (e->current().value < 6)
          update_to(*e, e->current().value + 1, config);
      });
      double worst = 0;
      for (const auto& [id, r] : got)
        worst = std::max(worst, worst_difference(r, config, temperature));
      INFO(type << " at temperature " << temperature << ": " << worst);
      REQUIRE(worst < 1e-4);
      REQUIRE(std::any_of(got.begin(), got.end(), [](const auto& entry) {
        return entry.second.youngest() > entry.second.oldest();
      }));
    }
}

TEST_CASE("greedy decoding takes the likeliest token of the full forward pass") {
  const c10::NoGradGuard guard;
  const auto config = engine_config();
  auto e = engine_at(1, {.stop_tokens = {2}}, config);
  submit(*e, 10, 1, 25, 0);
  results got;
  run_out(*e, got);
  model::transformer t(config);
  t.initialise(1);
  for (const auto& [id, r] : got) {
    const auto best = t.logits(model::pack({r.tokens})).argmax(-1);
    for (std::size_t i = static_cast<std::size_t>(r.prompt_length); i < r.tokens.size(); ++i)
      REQUIRE(best[static_cast<std::int64_t>(i) - 1].item<std::int64_t>() == r.tokens[i]);
  }
}
