#include "trainer/train_step.hpp"

#include "runtime/error.hpp"
#include "test/trainer/probe.hpp"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include <set>

using namespace millrace;
using namespace millrace::trainer;
using namespace millrace::toy;

TEST_CASE("the same inputs give the same parameters, bit for bit") {
  auto s = tiny_settings();
  s.trainer.minibatches = 2;
  s.trainer.epochs = 2;
  s.trainer.micro_batch_tokens = 40;
  auto groups = random_groups(3, 8, 4, {5}, 4);
  auto once = after_one_step(s, groups, {5});
  REQUIRE(same_bits(once, after_one_step(s, groups, {5})));
  s.seed = 99; // another split into minibatches
  REQUIRE(!same_bits(once, after_one_step(s, groups, {5})));
}

TEST_CASE("a token beyond eta, or from the future, never reaches the loss") {
  auto s = tiny_settings();
  s.rollout.eta = 2;
  auto network = tiny_network();
  auto before = parameters(network.views());
  reinforcement trainer(network, s);
  auto groups = random_groups(1, 2, 4, {7}, 2);
  for (auto bad : {4, 8}) {
    auto wrong = groups;
    wrong[1].rollouts[2].versions.back() = bad;
    REQUIRE_THROWS_AS(trainer.step({7}, wrong), invariant_error);
    REQUIRE(same_bits(before, parameters(network.views())));
  }
  auto stats = trainer.step({7}, groups);
  REQUIRE(stats.staleness_max <= 2);
  REQUIRE(stats.updates == 1);
}

TEST_CASE("statistics of a step") {
  auto s = tiny_settings();
  auto groups = random_groups(2, 5, 4, {6}, 4);
  double sum = 0;
  std::int64_t tokens = 0, same = 0;
  for (const auto& g : groups) {
    std::set<float> rewards;
    for (const auto& r : g.rollouts) {
      sum += r.reward;
      rewards.insert(r.reward);
      tokens += r.generated();
    }
    same += rewards.size() == 1;
  }
  step_statistics stats;
  after_one_step(s, groups, {6}, &stats);
  REQUIRE(stats.trained_from == version{6});
  REQUIRE(stats.rollouts == 20);
  REQUIRE(stats.groups == 5);
  REQUIRE(stats.reward_mean == Approx(sum / 20));
  REQUIRE(stats.zero_variance_groups == same);
  REQUIRE(stats.trained_tokens == tokens);
  std::int64_t in_histogram = 0;
  double staleness_sum = 0;
  for (std::size_t i = 0; i < stats.staleness.size(); ++i) {
    in_histogram += stats.staleness[i];
    staleness_sum += static_cast<double>(i) * static_cast<double>(stats.staleness[i]);
  }
  REQUIRE(in_histogram == tokens);
  REQUIRE(stats.staleness_mean == Approx(staleness_sum / static_cast<double>(tokens)));
  REQUIRE(stats.ess > 0);
  REQUIRE(stats.ess < 1);
  REQUIRE(stats.entropy == Approx(std::log(12)).margin(0.2)); // an untrained network is unsure
  REQUIRE(stats.seconds.total > 0);
  REQUIRE(stats.values().at("trained_tokens") == static_cast<double>(tokens));
}

TEST_CASE("batches with nothing in them") {
  auto s = tiny_settings();
  auto network = tiny_network();
  auto before = parameters(network.views());
  reinforcement trainer(network, s);
  auto none = trainer.step({0}, {});
  REQUIRE(none.updates == 0);
  auto groups = random_groups(1, 1, 2, {0}, 0);
  for (auto& r : groups[0].rollouts)
    std::fill(r.versions.begin(), r.versions.end(), -1); // all masked
  REQUIRE(trainer.step({0}, groups).updates == 0);
  REQUIRE(same_bits(before, parameters(network.views())));
}

TEST_CASE("a KL penalty holds the policy near its reference") {
  auto distance = [](kl_settings kl) {
    auto s = tiny_settings();
    s.trainer.minibatches = 2;
    s.algorithm.kl = kl;
    auto network = tiny_network();
    reinforcement trainer(network, s);
    step_statistics last;
    for (int v = 0; v < 15; ++v)
      last = trainer.step({v}, random_groups(7, 6, 4, {v}, 0));
    return std::pair{last.kl_reference, last.kl_loss};
  };
  auto [free, nothing] = distance({1e-6, kl_estimator::k3, kl_place::loss, kl_reference::initial});
  auto [held, penalty] = distance({2, kl_estimator::k3, kl_place::loss, kl_reference::initial});
  REQUIRE(free > 0);
  REQUIRE(held < free / 2);
  REQUIRE(penalty > nothing);
}

TEST_CASE("settings that don't fit are refused with what to set") {
  auto network = tiny_network();
  auto s = tiny_settings();
  s.algorithm.loss.name = "decoupled_pop";
  REQUIRE_THROWS_WITH(reinforcement(network, s), Catch::Contains("decoupled_ppo"));
  s = tiny_settings();
  s.algorithm.advantage.name = "gae";
  REQUIRE_THROWS_WITH(reinforcement(network, s), Catch::Contains("critic"));
  s = tiny_settings();
  s.algorithm.kl.coefficient = 0.1;
  REQUIRE_THROWS_WITH(reinforcement(network, s), Catch::Contains("algorithm.kl.reference"));
  s = tiny_settings();
  s.trainer.micro_batch_tokens = 30;
  s.trainer.minibatches = 4;
  reinforcement tight(network, s);
  auto before = parameters(network.views());
  auto groups = random_groups(1, 4, 4, {0}, 0);
  auto& r = groups[2].rollouts[1];
  r.tokens.resize(31, 1);
  r.versions.resize(31, 0);
  r.behaviour_logp.resize(31, -2);
  REQUIRE_THROWS_AS(tight.step({0}, groups), user_error);
  REQUIRE(same_bits(before, parameters(network.views()))); // not after the first minibatch
}
