// A training step's minibatches: micro-batches, skipped updates, idle sequences, precision.

#include "test/trainer/probe.hpp"
#include "trainer/step_batch.hpp"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include <limits>
#include <numeric>

using namespace millrace;
using namespace millrace::trainer;
using namespace millrace::toy;

TEST_CASE("gradient accumulation over micro-batches equals the whole batch") {
  struct variant {
    const char* loss;
    nlohmann::json params;
    loss_aggregation agg;
    kl_settings kl = {.reference = kl_reference::initial};
  };
  std::vector<variant> variants{
    {"decoupled_ppo", {{"bw_upper", 1.2}, {"bw_action", "mask"}}, loss_aggregation::token_mean},
    {"decoupled_ppo", nlohmann::json::object(), loss_aggregation::seq_mean_token_mean},
    {"mis_decoupled",
     {{"disc_low", 0.8}, {"disc_high", 1.2}, {"denominator", "kept"}},
     loss_aggregation::token_mean},
    {"gspo", nlohmann::json::object(), loss_aggregation::seq_mean_token_mean},
    {"m2po", {{"m2_threshold", 0.01}}, loss_aggregation::token_mean},
    {"aipo", nlohmann::json::object(), loss_aggregation::token_mean},
    {"ppo_clip", {{"kl_beta", 0.1}}, loss_aggregation::token_mean},
    {"decoupled_ppo", nlohmann::json::object(), loss_aggregation::token_mean,
     {0.2, kl_estimator::k3, kl_place::loss, kl_reference::initial}},
    {"decoupled_ppo", nlohmann::json::object(), loss_aggregation::seq_mean_token_sum,
     {0.2, kl_estimator::k1, kl_place::reward, kl_reference::initial}},
  };
  auto start = parameters(tiny_network().views());
  for (std::uint64_t seed = 0; seed < 3; ++seed)
    for (const auto& v : variants) {
      INFO("seed " << seed << ", " << v.loss << " " << v.params.dump());
      auto s = tiny_settings();
      s.trainer.minibatches = 2;
      s.algorithm.loss = {v.loss, v.params};
      s.algorithm.aggregation = v.agg;
      s.algorithm.kl = v.kl;
      auto groups = random_groups(seed, 6, 4, {5}, 4);
      step_statistics whole_stats, split_stats;
      auto whole = after_one_step(s, groups, {5}, &whole_stats);
      s.trainer.micro_batch_tokens = 30;
      auto split = after_one_step(s, groups, {5}, &split_stats);
      REQUIRE(split_stats.micro_batches > whole_stats.micro_batches);
      REQUIRE(largest_difference(whole, split) < 2e-4 * s.trainer.lr / 1e-2);
      REQUIRE(largest_difference(whole, start) > 1e-3);
      REQUIRE(split_stats.loss == Approx(whole_stats.loss).epsilon(1e-4).margin(1e-6));
      REQUIRE(split_stats.grad_norm == Approx(whole_stats.grad_norm).epsilon(1e-3));
      REQUIRE(split_stats.mask_fraction == Approx(whole_stats.mask_fraction));
      REQUIRE(split_stats.ess == Approx(whole_stats.ess).epsilon(1e-4));
      REQUIRE(split_stats.entropy == Approx(whole_stats.entropy).epsilon(1e-4));
    }
}

TEST_CASE("a loss or gradient that is not finite skips the update, counted and said") {
  auto s = probing();
  s.trainer.minibatches = 2;
  auto groups = random_groups(1, 6, 4, {3}, 3);
  for (bool in_gradient : {false, true})
    for (int poisoned : {0, 1, 2}) { // minibatch; 2: none
      int call = 0;
      auto known = with_probe([&](const policy_loss::inputs& in, policy_loss::outputs& out) {
        if (call++ != poisoned)
          return;
        auto inf = std::numeric_limits<double>::infinity();
        auto bad = in.logp_new.to(at::kDouble).sum() * 0;
        out.loss = in_gradient ? out.loss + (bad * 0).sqrt() : out.loss + bad + inf;
      });
      s.rollout.group_size = 4;
      for (auto& g : groups) // no idle sequences: one micro-batch per minibatch
        for (std::size_t i = 0; i < 4; ++i)
          g.rollouts[i].reward = static_cast<float>(i);
      auto network = tiny_network();
      auto before = parameters(network.views());
      reinforcement trainer(network, s, known);
      auto stats = trainer.step({3}, groups);
      auto after = parameters(network.views());
      INFO("poisoned " << poisoned << (in_gradient ? " gradient" : " loss"));
      REQUIRE(stats.skipped_updates == (poisoned < 2 ? 1 : 0));
      REQUIRE(stats.updates == (poisoned < 2 ? 1 : 2));
      REQUIRE(stats.remarks.size() == (poisoned < 2 ? 1 : 0));
      if (poisoned < 2) {
        REQUIRE_THAT(stats.remarks[0],
                     Catch::Contains(in_gradient ? "gradient" : "loss")
                       && Catch::Contains("minibatch " + std::to_string(poisoned + 1) + " of 2"));
        REQUIRE(std::isfinite(stats.loss));
      }
      REQUIRE(largest_difference(before, after) > 0);
      for (auto x : after)
        REQUIRE(std::isfinite(x));
    }
}

TEST_CASE("sequences without advantage go without backward only where that changes nothing") {
  auto s = probing();
  auto groups = random_groups(11, 8, 4, {2}, 2);
  for (bool everywhere : {false, true}) {
    // With `everywhere` the loss pulls at every token, whatever its advantage.
    auto pull = [&](const policy_loss::inputs& in, policy_loss::outputs& out) {
      if (everywhere)
        out.loss = out.loss + 0.1 * in.logp_new.to(at::kDouble).square().sum()
                                / static_cast<double>(in.global ? in.global->tokens
                                                                : in.logp_new.numel());
    };
    step_statistics stats;
    auto got = after_one_step(s, groups, {2}, &stats, with_probe(pull));
    REQUIRE(stats.zero_variance_groups > 0);

    // By hand, with gradient through everything.
    auto network = tiny_network();
    adamw optimizer(network, {s.trainer.beta1, s.trainer.beta2, s.trainer.eps, 0, 1});
    step_batch b({2}, groups, s);
    auto advantage = policy_loss::make_advantage("grpo", nlohmann::json::object());
    policy_loss::advantage_inputs a{.rewards = b.rewards, .group_ids = b.group_ids};
    b.set_advantages(advantage->compute(a).advantages);
    auto packed = pack(b.sequences, b.everything);
    auto logp = score_tokens(network, packed, 1).logp;
    policy_loss::inputs in{.logp_new = logp, .logp_prox = logp.detach(),
                           .logp_behav = b.behaviour, .advantages = b.advantages,
                           .cu_seqlens = packed.sampled_cu_seqlens};
    auto loss = policy_loss::make_loss("decoupled_ppo", {{"agg", "token_mean"}});
    auto out = loss->compute(in);
    pull(in, out);
    out.loss.backward();
    auto update = optimizer.step(s.trainer.lr);
    REQUIRE(stats.grad_norm == Approx(update.grad_norm).epsilon(1e-4));
    REQUIRE(largest_difference(got, parameters(network.views())) < 2e-4);
  }
}

TEST_CASE("a step with shared prompts equals one without, and reads fewer tokens") {
  for (auto budget : {100000, 40}) {
    auto s = tiny_settings();
    s.trainer.minibatches = 2;
    s.trainer.micro_batch_tokens = budget;
    auto groups = sibling_groups(3, 8, 6, {2}, 2);
    step_statistics with, without;
    auto a = after_one_step(s, groups, {2}, &with);
    s.trainer.share_prompts = false;
    auto b = after_one_step(s, groups, {2}, &without);
    REQUIRE(largest_difference(a, b) < 1e-4);
    REQUIRE(with.loss == Approx(without.loss).margin(1e-6));
    REQUIRE(with.grad_norm == Approx(without.grad_norm).epsilon(1e-4));
    REQUIRE(with.trained_tokens == without.trained_tokens);
    REQUIRE(with.processed_tokens < without.processed_tokens);
  }
}

TEST_CASE("layers in bf16: near fp32, other than it, and no small update is lost") {
  auto wide = tiny_network(), narrow = tiny_network();
  narrow.compute_in(at::kBFloat16);
  auto groups = sibling_groups(5, 6, 4, {0}, 0);
  auto sequences = training_sequences(groups);
  std::vector<std::size_t> all(sequences.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  auto gradient = [&](model::transformer& network) {
    auto g = network.flat_gradient();
    auto logp = score_tokens(network, pack(sequences, all, true), 1.0).logp;
    logp.sum().backward();
    return std::pair{logp.detach(), g.clone()};
  };
  auto [logp, exact] = gradient(wide);
  auto [logp_bf16, off] = gradient(narrow);
  REQUIRE(logp_bf16.scalar_type() == at::kFloat);
  REQUIRE(off.scalar_type() == at::kFloat);
  auto apart = (logp - logp_bf16).abs().max().item<double>();
  auto relative = ((exact - off).norm() / exact.norm()).item<double>();
  INFO("log-probs " << apart << ", gradient " << relative << " apart");
  REQUIRE((apart > 0 && apart < 0.02));
  REQUIRE((relative > 1e-5 && relative < 0.02));
  // Computed again instead of kept: the same bits.
  narrow.recompute_activations(true);
  narrow.flat_gradient().zero_();
  REQUIRE(at::equal(gradient(narrow).second, off));
  // A bf16 weight of 1 would need 4e-3 to move at all.
  auto s = tiny_settings();
  s.trainer.lr = 1e-6;
  narrow.flat_gradient().zero_();
  reinforcement trainer(narrow, s);
  auto before = narrow.flat().detach().clone();
  trainer.step({0}, groups);
  auto moved = (narrow.flat().detach() - before).abs();
  REQUIRE(moved.max().item<double>() < 1e-5);
  REQUIRE(moved.gt(0).sum().item<std::int64_t>() > before.numel() / 2);
}
