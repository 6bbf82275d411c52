#pragma once

#include "engine_fixture.hpp"

namespace millrace::test {

/// Submits samples 0 … samples − 1 of prompts 0 … prompts − 1.
inline void submit(generation::engine& e, std::int64_t prompts, std::int32_t samples,
                   std::int32_t max_tokens, float temperature = 1) {
  for (std::int64_t prompt = 0; prompt < prompts; ++prompt)
    for (std::int32_t sample = 0; sample < samples; ++sample) {
      auto t = task_for(prompt, sample, max_tokens);
      t.sampling.temperature = temperature;
      e.submit(std::move(t));
    }
}

/// Steps until nothing is left, with `between()` after each `every` steps (0: never).
template <class Between>
results run_out_with(generation::engine& e, int every, Between between) {
  results got;
  for (int step = 1; e.running() + e.waiting() > 0; ++step) {
    for (auto& r : e.step())
      got.emplace(r.id, std::move(r));
    if (every > 0 && step % every == 0)
      between();
  }
  return got;
}

} // namespace millrace::test
