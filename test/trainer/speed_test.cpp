// Not run unless asked for: trainer_test "[speed]"

#include "test/trainer/toy.hpp"
#include "trainer/policy.hpp"

#include <malloc.h>

#include <catch2/catch.hpp>

#include <cstdio>
#include <ctime>

using namespace millrace;
using namespace millrace::trainer;
using namespace millrace::toy;

namespace {

/// Of this thread, which does all the work: what others do to the machine doesn't count.
double cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

} // namespace

TEST_CASE("tokens per second of the quickstart's shapes", "[.speed]") {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  std::printf("%-44s %9s %9s  %s\n", "model, rollouts, minibatches, micro-batch", "tokens/s",
              "trained/s", "(of one core's time); s: old logits, backward, optimizer, total");
  struct shape {
    int hidden, layers, rollouts, minibatches, micro_batch;
    old_logits_source old = old_logits_source::recompute;
  };
  for (auto [hidden, layers, rollouts, minibatches, micro_batch, old] : std::vector<shape>{
         {64, 2, 256, 1, 4096},
         {128, 4, 64, 1, 4096},
         {128, 4, 512, 1, 512},
         {128, 4, 512, 1, 1024},
         {128, 4, 512, 1, 2048},
         {128, 4, 512, 1, 4096},
         {128, 4, 512, 1, 16384},
         {128, 4, 512, 4, 4096},
         {128, 4, 512, 4, 4096, old_logits_source::loglinear},
         {128, 4, 512, 4, 4096, old_logits_source::ewma}}) {
    settings s;
    s.rollout.eta = 4;
    s.model.architecture = {.layers = layers, .hidden = hidden, .heads = hidden / 32,
                            .kv_heads = hidden / 64, .intermediate = hidden * 11 / 4};
    s.trainer.minibatches = minibatches;
    s.trainer.micro_batch_tokens = micro_batch;
    s.algorithm.old_logits = old;
    auto p = policy::create(s);
    std::vector<double> best(5, 1e9);
    double processed = 0, trained = 0, cpu = 1e9;
    for (int round = 0; round < 4; ++round) {
      auto groups = random_groups(round, rollouts / 8, 8, {round}, 4);
      for (auto& g : groups)
        for (auto& r : g.rollouts) { // 12 of prompt, 8 of answer
          r.reward = static_cast<float>(r.id.sample % 2);
          r.prompt_length = 12;
          r.tokens.resize(20, 7);
          r.behaviour_logp.resize(20, -2.5F);
          r.versions.assign(20, round);
          std::fill_n(r.versions.begin(), 12, -1);
        }
      auto began = cpu_seconds();
      auto stats = p.step({round}, groups);
      cpu = std::min(cpu, cpu_seconds() - began);
      processed = static_cast<double>(stats.processed_tokens);
      trained = static_cast<double>(stats.trained_tokens);
      auto& t = stats.seconds;
      if (t.total < best[4])
        best = {t.advantage, t.old_logits, t.forward_backward, t.optimizer, t.total};
    }
    char name[64];
    std::snprintf(name, sizeof name, "d %d L %d, %d, %d, %d", hidden, layers, rollouts, minibatches,
                  micro_batch);
    std::printf("%-44s %9.0f %9.0f  %.4f %.4f %.4f %.4f\n", name, processed / cpu,
                trained / cpu, best[1], best[2], best[3], best[4]);
  }
}
