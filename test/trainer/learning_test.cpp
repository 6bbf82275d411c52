// What training is for: the loss falls, the reward rises.

#include "test/trainer/toy.hpp"
#include "trainer/supervised.hpp"
#include "trainer/train_step.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::trainer;
using namespace millrace::toy;

namespace {

/// Prompt (a, b), answer: the larger, then token 0.
std::vector<demonstration> larger_of_two(random_stream& random, int n) {
  std::vector<demonstration> batch;
  for (int i = 0; i < n; ++i) {
    auto a = static_cast<std::int32_t>(1 + random.below(11));
    auto b = static_cast<std::int32_t>(1 + random.below(11));
    batch.push_back({{a, b, std::max(a, b), 0}, 2});
  }
  return batch;
}

/// A bandit: the prompt is a token x, the answer one token, right when it is (x + 3) mod 12.
std::vector<scored_group> play(const model::transformer& network, version v, int groups,
                               int per_group, random_stream& random) {
  at::NoGradGuard no_grad;
  std::vector<scored_group> result;
  for (int g = 0; g < groups; ++g) {
    auto x = static_cast<std::int32_t>(random.below(12));
    auto logp = network.logits(model::pack({{x}})).log_softmax(-1)[0];
    scored_group group{.group = g};
    for (int i = 0; i < per_group; ++i) {
      auto u = random.uniform();
      std::int32_t y = 0;
      for (double sum = 0; y < 11; ++y)
        if ((sum += std::exp(logp[y].item<double>())) > u)
          break;
      rollout r;
      r.id = {g, i};
      r.prompt_length = 1;
      r.tokens = {x, y};
      r.behaviour_logp = {0, logp[y].item<float>()};
      r.versions = {-1, v.value};
      r.reward = y == (x + 3) % 12 ? 1.0F : 0.0F;
      group.rollouts.push_back(std::move(r));
    }
    result.push_back(std::move(group));
  }
  return result;
}

double mean_reward(const std::vector<scored_group>& groups) {
  double sum = 0, n = 0;
  for (const auto& g : groups)
    for (const auto& r : g.rollouts) {
      sum += r.reward;
      n += 1;
    }
  return sum / n;
}

} // namespace

TEST_CASE("supervised: the loss falls and the task is learnt") {
  auto network = tiny_network();
  supervised_options options;
  options.learning_rate.peak = 5e-3;
  supervised trainer(network, options);
  random_stream random{1};
  auto first = trainer.step(larger_of_two(random, 32));
  REQUIRE(first.loss == Approx(std::log(12)).margin(0.5));
  REQUIRE(first.tokens == 64);
  double loss = 0, accuracy = 0; // of single batches they go up and down
  constexpr int steps = 600, last = 50;
  for (int i = 0; i < steps; ++i) {
    auto now = trainer.step(larger_of_two(random, 32));
    loss += i >= steps - last ? now.loss / last : 0;
    accuracy += i >= steps - last ? now.token_accuracy / last : 0;
  }
  REQUIRE(loss < 0.3);
  REQUIRE(accuracy > 0.85);
  REQUIRE(trainer.steps() == 1 + steps);
}

TEST_CASE("supervised: micro-batches don't change the step; an empty one changes nothing") {
  auto step = [](std::int64_t micro_batch_tokens) {
    auto network = tiny_network();
    supervised_options options;
    options.learning_rate.peak = 1e-2;
    options.micro_batch_tokens = micro_batch_tokens;
    supervised trainer(network, options);
    REQUIRE(trainer.step({}).tokens == 0);
    random_stream random{2};
    trainer.step(larger_of_two(random, 20));
    return parameters(network.views());
  };
  auto whole = step(10000);
  REQUIRE(largest_difference(whole, step(9)) < 2e-4);
  REQUIRE(same_bits(whole, step(10000)));
}

TEST_CASE("reinforcement: a bandit's reward rises, with every source of old log-probs") {
  for (auto source : {old_logits_source::recompute, old_logits_source::behaviour,
                      old_logits_source::loglinear, old_logits_source::ewma}) {
    auto s = tiny_settings();
    s.algorithm.old_logits = source;
    s.algorithm.ewma.window = 1;
    s.trainer.minibatches = 2;
    s.rollout.eta = 1;
    auto network = tiny_network();
    reinforcement trainer(network, s);
    random_stream random{3};
    double first = 0, last = 0;
    auto waiting = play(network, {0}, 16, 16, random);
    first = mean_reward(waiting);
    for (int v = 0; v < 120; ++v) { // always one version behind
      auto next = play(network, {v}, 16, 16, random);
      last = mean_reward(next);
      trainer.step({v}, waiting);
      waiting = std::move(next);
    }
    INFO("old_logits " << static_cast<int>(source) << ": " << first << " → " << last);
    REQUIRE(first < 0.25);
    REQUIRE(last > 0.8);
  }
}
