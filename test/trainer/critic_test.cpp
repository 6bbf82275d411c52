#include "trainer/critic.hpp"

#include "runtime/error.hpp"
#include "test/trainer/scratch_folder.hpp"
#include "test/trainer/toy.hpp"
#include "trainer/policy.hpp"
#include "trainer/step_batch.hpp"
#include "trainer/train_step.hpp"

#include <ATen/TensorOperators.h>

#include <catch2/catch.hpp>

#include <functional>

using namespace millrace;
using namespace millrace::trainer;
using namespace millrace::toy;

namespace {

settings with_critic(critic_kind kind) {
  auto s = tiny_settings();
  s.trainer.minibatches = 2;
  s.trainer.micro_batch_tokens = 60;
  s.algorithm.advantage = {"gae", {{"gamma", 1.0}, {"lambda", 1.0}}};
  s.algorithm.critic.kind = kind;
  s.algorithm.critic.lr = kind == critic_kind::head ? 0.05 : 0.005;
  return s;
}

/// Right answers and their prompts are of other tokens than wrong ones.
std::vector<scored_group> told_by_tokens(std::uint64_t seed, version v) {
  auto groups = random_groups(seed, 6, 4, v, 0);
  for (auto& g : groups)
    for (auto& r : g.rollouts) {
      auto right = r.tokens[0] % 2 == 0;
      for (auto& t : r.tokens)
        t = t % 6 + (right ? 6 : 0);
      r.reward = right ? 1.0F : 0.0F;
    }
  return groups;
}

} // namespace

TEST_CASE("a critic learns what the tokens tell of the reward") {
  for (auto kind : {critic_kind::head, critic_kind::model}) {
    auto s = with_critic(kind);
    s.trainer.lr = kind == critic_kind::head ? 0 : 1e-3; // the head alone, on hidden states that stay
    s.algorithm.critic.lr = kind == critic_kind::head ? 0.05 : 0.005;
    auto network = tiny_network();
    reinforcement trainer(network, s);
    double first = 0, last = 0;
    for (version v{0}; v.value < 60; v = v.next()) {
      auto stats = trainer.step(v, told_by_tokens(static_cast<std::uint64_t>(v.value), v));
      REQUIRE(std::isfinite(stats.value_loss));
      (v.value < 5 ? first : last) += stats.value_loss / (v.value < 5 ? 5 : 55);
      if (v.value == 59) {
        INFO("kind " << int(kind) << ", explained " << stats.explained_variance);
        REQUIRE(stats.explained_variance > 0.3);
      }
    }
    REQUIRE(last < first);
  }
}

TEST_CASE("at first a critic knows nothing, and gae then gives every token its rollout's reward") {
  auto s = with_critic(critic_kind::head);
  auto network = tiny_network();
  auto groups = told_by_tokens(3, {0});
  step_batch b({0}, groups, s);
  critic c(s, network);
  REQUIRE(c.values(network, b.scorer, b.everything).abs().max().item<float>() == 0);
  reinforcement trainer(network, s);
  auto stats = trainer.step({0}, groups);
  REQUIRE(stats.advantage_abs_mean == Approx(stats.reward_mean).margin(0.2));
  REQUIRE(stats.value_mean == 0);
}

TEST_CASE("the value head's gradient goes no further") {
  auto s = with_critic(critic_kind::head);
  auto groups = told_by_tokens(5, {0});
  auto fast = tiny_network(), slow = tiny_network();
  auto learnt = reinforcement(fast, s).step({0}, groups);
  REQUIRE(learnt.critic_grad_norm > 0);
  s.algorithm.critic.lr = 1e-9;
  reinforcement(slow, s).step({0}, groups);
  REQUIRE(same_bits(parameters(fast.views()), parameters(slow.views())));
}

TEST_CASE("vtrace has what it needs; gae without a critic is refused") {
  auto s = with_critic(critic_kind::head);
  s.algorithm.advantage = {"vtrace"};
  auto network = tiny_network();
  reinforcement trainer(network, s);
  auto stats = trainer.step({4}, random_groups(1, 6, 4, {4}, 4));
  REQUIRE(stats.updates == 2);
  s.algorithm.critic.kind = critic_kind::none;
  REQUIRE_THROWS_WITH(reinforcement(network, s), Catch::Contains("algorithm.critic.kind"));
}

TEST_CASE("a moving reference follows every so many versions") {
  auto s = tiny_settings();
  s.algorithm.kl = {.coefficient = 0.01, .reference = kl_reference::moving, .move_every = 3};
  auto network = tiny_network();
  reinforcement trainer(network, s);
  for (version v{0}; v.value < 9; v = v.next()) {
    auto stats = trainer.step(v, told_by_tokens(static_cast<std::uint64_t>(v.value), v));
    INFO("from " << v.value);
    if (v.value % 3 == 0)
      REQUIRE(stats.kl_reference == Approx(0).margin(1e-9));
    else
      REQUIRE(stats.kl_reference > 1e-7);
  }
}

TEST_CASE("critic, moving reference and exact old log-probs go on from a checkpoint bit for bit") {
  std::vector<std::function<void(settings&)>> variants{
    [](settings& s) { s.algorithm.critic.kind = critic_kind::head; },
    [](settings& s) { s.algorithm.critic.kind = critic_kind::model; },
    [](settings& s) {
      s.algorithm.advantage = {"grpo"};
      s.algorithm.critic.kind = critic_kind::none;
      s.algorithm.kl = {.coefficient = 0.01, .reference = kl_reference::moving, .move_every = 3};
    },
    [](settings& s) { s.algorithm.old_logits = old_logits_source::snapshot; },
    [](settings& s) { s.algorithm.old_logits = old_logits_source::interrupt; },
  };
  for (std::size_t i = 0; i < variants.size(); ++i) {
    INFO("variant " << i);
    auto s = with_critic(critic_kind::head);
    s.deterministic = true;
    variants[i](s);
    auto run = [&](policy& p, int until) {
      while (p.current().value < until)
        p.step(p.current(), told_by_tokens(static_cast<std::uint64_t>(p.current().value), p.current()));
    };
    scratch_folder dir;
    auto whole = policy::create(s), half = policy::create(s);
    run(whole, 7);
    run(half, 4);
    half.save(dir.path);
    auto resumed = policy::load(s, dir.path);
    run(resumed, 7);
    REQUIRE(same_bits(parameters(whole.views()), parameters(resumed.views())));
  }
}
