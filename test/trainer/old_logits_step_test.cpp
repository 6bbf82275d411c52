// Old log-probs as a training step uses them.

#include "test/trainer/probe.hpp"
#include "trainer/step_batch.hpp"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include <map>

using namespace millrace;
using namespace millrace::trainer;
using namespace millrace::toy;

TEST_CASE("recompute: old log-probs are those of the step's start, at every use") {
  for (auto epochs : {1, 2}) {
    auto network = tiny_network();
    auto frozen = network.frozen_copy();
    auto s = probing();
    s.trainer.minibatches = 3;
    s.trainer.epochs = epochs;
    s.trainer.micro_batch_tokens = 40;
    auto groups = random_groups(5, 9, 4, {5}, 4);
    step_batch reference({5}, groups, s);
    auto expected = at::zeros({reference.layout.tokens()}, at::kFloat);
    reference.scorer.fill(expected, frozen, reference.everything);
    // Behaviour log-probs are all different, so they tell which token is which.
    std::map<float, float> of;
    for (std::int64_t i = 0; i < expected.numel(); ++i)
      of[reference.behaviour[i].item<float>()] = expected[i].item<float>();
    REQUIRE(of.size() == static_cast<std::size_t>(expected.numel()));
    std::int64_t checked = 0, moved = 0;
    auto known = with_probe([&](const policy_loss::inputs& in, policy_loss::outputs&) {
      for (std::int64_t i = 0; i < in.logp_behav.numel(); ++i) {
        auto prox = in.logp_prox[i].item<float>();
        REQUIRE(prox == Approx(of.at(in.logp_behav[i].item<float>())).margin(1e-5));
        moved += std::abs(prox - in.logp_new[i].item<float>()) > 1e-4;
        ++checked;
      }
    });
    reinforcement trainer(network, s, known);
    auto stats = trainer.step({5}, groups);
    REQUIRE(checked == epochs * expected.numel());
    REQUIRE(moved > checked / 3);
    REQUIRE(stats.old_logits_served == std::map<std::string, std::int64_t>{
                                         {"recompute", expected.numel()}});
  }
}

TEST_CASE("proxies: behaviour, and interpolation by version") {
  auto groups = random_groups(5, 3, 4, {5}, 4);
  for (auto source : {old_logits_source::behaviour, old_logits_source::loglinear,
                      old_logits_source::arithmetic}) {
    auto s = probing();
    s.algorithm.old_logits = source;
    auto fresh = 0, between = 0;
    auto known = with_probe([&](const policy_loss::inputs& in, policy_loss::outputs&) {
      for (std::int64_t i = 0; i < in.logp_behav.numel(); ++i) {
        auto prox = in.logp_prox[i].item<double>(), mu = in.logp_behav[i].item<double>(),
             theta = in.logp_new[i].item<double>();
        if (prox == mu)
          ++fresh;
        else if (prox > std::min(mu, theta) && prox < std::max(mu, theta))
          ++between;
        else
          FAIL("outside");
      }
    });
    step_statistics stats;
    after_one_step(s, groups, {5}, &stats, known);
    if (source == old_logits_source::behaviour) {
      REQUIRE(between == 0);
    } else {
      REQUIRE(fresh == stats.staleness[0]); // α is 0 where there is no gap
      REQUIRE(between == stats.trained_tokens - stats.staleness[0]);
    }
  }
}

TEST_CASE("ewma: the average trails, resets when too little is kept, and is restored exactly") {
  auto s = tiny_settings();
  s.algorithm.old_logits = old_logits_source::ewma;
  s.algorithm.ewma = {.window = 2}; // β = 1/2
  auto network = tiny_network();
  reinforcement trainer(network, s);
  auto average = [&](const reinforcement& t) {
    std::vector<tensor_view> views;
    for (auto& v : t.tensors())
      if (v.name.starts_with("ewma/"))
        views.push_back(v);
    return parameters(views);
  };
  auto theta0 = parameters(network.views());
  REQUIRE(average(trainer) == theta0);
  trainer.step({0}, random_groups(1, 4, 4, {0}, 0));
  auto theta1 = parameters(network.views());
  auto averaged = average(trainer);
  // W' = β·1 + 1 = 1.5; θ_p = (0.5·θ0 + θ1)/1.5
  for (std::size_t i = 0; i < theta0.size(); ++i)
    REQUIRE(averaged[i] == Approx((0.5 * theta0[i] + theta1[i]) / 1.5).margin(1e-6));
  REQUIRE(trainer.state()["old_logits"]["total_weight"] == 1.5);

  s.algorithm.ewma = {.window = 2, .reset_below = 1.0,
                      .reset_rule = ewma_reset_rule::mask_and_clip};
  s.algorithm.loss.params = {{"eps", 1e-4}}; // nearly everything is clipped
  s.trainer.epochs = 3;
  reinforcement strict(network, s);
  REQUIRE(strict.step({1}, random_groups(2, 4, 4, {1}, 1)).ewma_reset);
  REQUIRE(average(strict) == parameters(network.views()));
}
