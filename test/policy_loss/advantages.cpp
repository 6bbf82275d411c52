#include "random_batch.hpp"

#include "policy_loss/advantage.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

using namespace millrace;
using namespace millrace::policy_loss;
using namespace millrace::policy_loss::testing;

namespace {

at::Tensor row(const std::vector<double>& values) {
  auto t = at::empty({static_cast<std::int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), t.mutable_data_ptr<double>());
  return t;
}

std::vector<double> values(const at::Tensor& t) {
  auto c = t.to(at::kDouble).contiguous();
  return {c.const_data_ptr<double>(), c.const_data_ptr<double>() + c.numel()};
}

advantage_inputs groups(const std::vector<double>& rewards, const std::vector<double>& ids) {
  return {.rewards = row(rewards), .group_ids = row(ids).to(at::kLong)};
}

} // namespace

TEST_CASE("group estimators: zero mean, unit deviation, identity of RLOO, groups in any order") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random{seed};
    std::normal_distribution<double> reward{1, 2};
    std::vector<double> rewards, ids;
    for (int s = 0; s < 12; ++s) {
      rewards.push_back(reward(random));
      ids.push_back(s % 3); // groups of 4, interleaved
    }
    auto grpo =
      values(make_advantage("grpo", {{"eps", 0}})->compute(groups(rewards, ids)).advantages);
    auto mean =
      values(make_advantage("mean_baseline", {})->compute(groups(rewards, ids)).advantages);
    auto rloo = values(make_advantage("rloo", {})->compute(groups(rewards, ids)).advantages);
    for (int g = 0; g < 3; ++g) {
      double sum = 0, squares = 0;
      for (std::size_t s = static_cast<std::size_t>(g); s < 12; s += 3) {
        sum += grpo[s];
        squares += grpo[s] * grpo[s];
        REQUIRE(rloo[s] == Approx(mean[s] * 4 / 3));
      }
      REQUIRE(sum == Approx(0).margin(1e-12));
      REQUIRE(squares / 3 == Approx(1));
    }
  }
}

TEST_CASE("no signal is exactly 0: equal rewards, groups of one, failed rewards") {
  for (const auto* name : {"grpo", "mean_baseline", "rloo"}) {
    INFO(name);
    auto equal = groups({0.1, 0.1, 0.1, 0.7}, {0, 0, 0, 1});
    for (auto a : values(make_advantage(name, {})->compute(equal).advantages))
      REQUIRE(a == 0);
    auto failed = values(make_advantage(name, {})
                           ->compute(groups({1, std::nan(""), 0}, {0, 0, 0}))
                           .advantages);
    REQUIRE(failed[1] == 0);
    REQUIRE(failed[0] == -failed[2]);
  }
  auto alone = make_advantage("grpo", {})->compute(groups({0.7}, {0}));
  REQUIRE(values(alone.named.at("advantages_verl"))[0] == Approx(0.6999993));
}

TEST_CASE("per-sequence advantages are given to each valid token") {
  auto in = groups({1, 0}, {0, 0});
  in.mask = row({1, 1, 0, 1, 1}).to(at::kBool);
  in.cu_seqlens = {0, 3, 5};
  auto a = values(make_advantage("mean_baseline", {})->compute(in).advantages);
  REQUIRE(a == std::vector<double>{0.5, 0.5, 0, -0.5, -0.5});
}

TEST_CASE("GAE: lambda 1 is return minus value, and masked tokens are stepped over") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random{seed};
    random_batch data{random, 4, 7};
    auto in = data.packed();
    advantage_inputs a{.token_rewards = in.logp_ref, .values = in.logp_prox, .mask = in.mask,
                       .cu_seqlens = in.cu_seqlens};
    auto full = make_advantage("gae", {{"gamma", 0.9}, {"lambda", 1}})->compute(a);
    auto got = values(full.advantages), value = values(in.logp_prox), reward = values(in.logp_ref);
    const auto* valid = in.mask.const_data_ptr<bool>();
    for (std::size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s) {
      double running = 0;
      for (auto i = static_cast<std::size_t>(in.cu_seqlens[s + 1]);
           i-- > static_cast<std::size_t>(in.cu_seqlens[s]);) {
        if (!valid[i]) {
          REQUIRE(got[i] == 0);
          continue;
        }
        running = reward[i] + 0.9 * running;
        REQUIRE(got[i] == Approx(running - value[i]).margin(1e-12));
      }
    }
    // The same without the masked tokens in between.
    std::vector<std::int32_t> offsets{0};
    std::int32_t n = 0;
    for (std::size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s) {
      for (auto i = in.cu_seqlens[s]; i < in.cu_seqlens[s + 1]; ++i)
        n += valid[i] ? 1 : 0;
      offsets.push_back(n);
    }
    advantage_inputs dense{.token_rewards = in.logp_ref.masked_select(in.mask),
                           .values = in.logp_prox.masked_select(in.mask), .cu_seqlens = offsets};
    for (const auto* name : {"gae", "reinforce_plus_plus"}) {
      auto method = make_advantage(name, {{"gamma", 0.95}});
      REQUIRE(largest_difference(method->compute(a).advantages.masked_select(in.mask),
                                 method->compute(dense).advantages) < 1e-12);
    }
  }
}

TEST_CASE("V-trace on policy is GAE with lambda 1") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random{seed};
    random_batch data{random, 3, 6};
    auto in = data.padded();
    advantage_inputs a{.token_rewards = in.logp_ref, .values = in.logp_prox,
                       .log_ratio = at::zeros({3, 6}, at::kDouble), .mask = in.mask};
    auto vtrace = make_advantage("vtrace", {{"gamma", 0.9}})->compute(a);
    auto gae = make_advantage("gae", {{"gamma", 0.9}, {"lambda", 1}})->compute(a);
    REQUIRE(largest_difference(vtrace.returns, gae.returns) < 1e-12);
    REQUIRE(largest_difference(vtrace.advantages, gae.advantages) < 1e-12);
  }
}

TEST_CASE("REINFORCE++ is white over the batch's tokens") {
  std::mt19937_64 random{3};
  random_batch data{random, 5, 6};
  auto in = data.padded();
  for (const auto* name : {"reinforce_plus_plus", "reinforce_plus_plus_baseline"}) {
    advantage_inputs a{.rewards = in.rewards, .group_ids = at::zeros({5}, at::kLong),
                       .mask = in.mask};
    auto whitened = make_advantage(name, {})->compute(a).advantages;
    auto inside = whitened.masked_select(in.mask);
    REQUIRE(inside.mean().item<double>() == Approx(0).margin(1e-12));
    REQUIRE(inside.var().item<double>() == Approx(1).epsilon(1e-6));
    REQUIRE(whitened.masked_select(in.mask.logical_not()).eq(0).all().item<bool>());
  }
}

TEST_CASE("KL in the reward: outcome on the last valid token, penalties elsewhere") {
  advantage_inputs in{.rewards = row({2, 3}), .mask = row({1, 1, 0, 1, 0, 0}).to(at::kBool),
                      .cu_seqlens = {0, 3, 6}};
  auto behav = row({-1, -1, -1, -1, -1, -1}), ref = row({-1.5, -1, -9, -0.5, 0, 0});
  auto out = values(kl_reward(behav, ref, in, {.coefficient = 0.1}).token_rewards);
  REQUIRE(out[0] == Approx(-0.05));
  REQUIRE(out[1] == Approx(2));
  REQUIRE(out[2] == 0);
  REQUIRE(out[3] == Approx(3.05));
  REQUIRE(out[4] == 0);
}

TEST_CASE("estimators say what they lack") {
  using Catch::Matchers::Contains;
  REQUIRE_THROWS_WITH(make_advantage("grpo", {})->compute({.rewards = row({1})}),
                      Contains("group_ids"));
  REQUIRE_THROWS_WITH(make_advantage("gae", {})->compute({.token_rewards = at::zeros({1, 2})}),
                      Contains("values"));
  REQUIRE_THROWS_AS(make_advantage("reinforce_plus_plus", {})->compute({.rewards = row({1})}),
                    user_error);
}
