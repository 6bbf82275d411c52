#include "random_batch.hpp"

#include "policy_loss/advantage.hpp"
#include "policy_loss/diagnostics.hpp"
#include "policy_loss/value_loss.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

using namespace millrace::policy_loss;
using namespace millrace::policy_loss::testing;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Puts the worst into a few random places of every tensor, valid ones included.
void poison(random_batch& data, std::mt19937_64& random) {
  const double poisons[] = {inf, -inf, not_a_number, 1e30, -1e30, 800, -800, 90, -90, 0};
  std::uniform_int_distribution<std::size_t> which{0, std::size(poisons) - 1};
  std::uniform_int_distribution<std::size_t> place{0, data.logp_new.size() - 1};
  for (auto* values : {&data.logp_new, &data.logp_prox, &data.logp_behav, &data.logp_ref,
                       &data.advantages})
    for (int k = 0; k < 4; ++k)
      (*values)[place(random)] = poisons[which(random)];
  data.rewards[0] = poisons[which(random)];
}

void require_sane(const evaluated& result) {
  REQUIRE_FALSE(has_nan(result.out.loss));
  REQUIRE_FALSE(has_nan(result.gradient));
  REQUIRE_FALSE(has_nan(result.out.weight));
  for (const auto& stat : result.out.stats.all()) {
    INFO(stat.name);
    REQUIRE_FALSE(std::isnan(stat.value));
  }
}

} // namespace

TEST_CASE("nothing that goes in makes a loss, gradient or statistic NaN") {
  std::uint64_t seed = 3000;
  for (const auto& one : examples())
    for (const char* nonfinite : {"drop", "areal_zero"})
      for (auto type : {at::kDouble, at::kFloat})
        for (int repeat = 0; repeat < 2; ++repeat) {
          auto params = one.params;
          params["nonfinite"] = nonfinite;
          params["agg"] = repeat % 2 == 0 ? "token_mean" : "seq_mean_token_mean";
          params["denominator"] = seed % 3 == 0 ? "kept" : "original";
          std::mt19937_64 random{++seed};
          random_batch data{random, 4, 6};
          poison(data, random);
          INFO("seed " << seed << ", " << one.name << ' ' << params.dump());
          auto method = make_loss(one.name, params);
          require_sane(evaluate(*method, data.padded(type)));
          require_sane(evaluate(*method, data.packed(type)));
        }
}

TEST_CASE("what masked positions hold makes no difference") {
  std::uint64_t seed = 4000;
  for (const auto& one : examples()) {
    std::mt19937_64 random{++seed};
    random_batch data{random, 4, 6};
    INFO("seed " << seed << ", " << one.name << ' ' << one.params.dump());
    auto method = make_loss(one.name, one.params);
    auto clean = evaluate(*method, data.padded());
    const double poisons[] = {inf, -inf, not_a_number, 1e30};
    for (std::size_t i = 0; i < data.mask.size(); ++i)
      if (data.mask[i] == 0) {
        data.logp_new[i] = poisons[i % 4];
        data.logp_prox[i] = poisons[(i + 1) % 4];
        data.logp_behav[i] = poisons[(i + 2) % 4];
        data.logp_ref[i] = data.advantages[i] = poisons[(i + 3) % 4];
      }
    auto garbage = evaluate(*method, data.padded());
    REQUIRE(garbage.out.loss.equal(clean.out.loss));
    REQUIRE(garbage.gradient.equal(clean.gradient));
    REQUIRE(garbage.out.weight.equal(clean.out.weight));
    REQUIRE(garbage.out.stats.get("nonfinite") == 0);
  }
}

TEST_CASE("a dropped token leaves the numerator, is counted, and stays in the denominator") {
  std::mt19937_64 random{5};
  random_batch data{random, 3, 4};
  std::fill(data.mask.begin(), data.mask.end(), 1);
  data.logp_prox[2] = -inf;
  auto in = data.padded();
  auto dropped = evaluate(*make_loss("ppo_clip", {{"eps", 0.2}}), in);
  REQUIRE(dropped.out.stats.get("nonfinite_dropped") == 1);
  REQUIRE(dropped.out.local.tokens == 12);
  REQUIRE(dropped.out.local.kept_tokens == 11);
  auto masked = in;
  masked.mask = in.mask.clone();
  masked.mask[0][2] = false;
  masked.logp_prox = in.logp_prox.nan_to_num();
  masked.global = counts{.tokens = 12, .sequences = 3, .batch = 3};
  auto expected = evaluate(*make_loss("ppo_clip", {{"eps", 0.2}}), masked);
  REQUIRE(dropped.out.loss.item<double>() == Approx(expected.out.loss.item<double>()));
  REQUIRE(largest_difference(dropped.gradient, expected.gradient) < 1e-15);
  auto zeroed = evaluate(*make_loss("ppo_clip", {{"eps", 0.2}, {"nonfinite", "areal_zero"}}), in);
  REQUIRE(zeroed.out.stats.get("nonfinite") == 1);
  REQUIRE(zeroed.out.stats.get("nonfinite_dropped") == 0);
  REQUIRE(zeroed.out.loss.item<double>()
          == Approx(dropped.out.loss.item<double>() - data.advantages[2] / 12));
}

TEST_CASE("empty batches give loss 0 and gradient 0") {
  std::size_t k = 0;
  for (const auto& one : examples())
    for (const auto& aggregation : some_aggregations(k++)) {
      auto params = one.params;
      params.update(aggregation);
      INFO(one.name << ' ' << params.dump());
      auto method = make_loss(one.name, params);
      auto none_of = [&](const inputs& in) {
        auto result = evaluate(*method, in);
        REQUIRE(result.out.loss.item<double>() == 0);
        REQUIRE(result.gradient.eq(0).all().item<bool>());
        REQUIRE(result.out.local.tokens == 0);
        require_sane(result);
      };
      std::mt19937_64 random{1};
      random_batch data{random, 3, 4};
      std::fill(data.mask.begin(), data.mask.end(), 0);
      none_of(data.padded()); // no valid token
      none_of(data.packed());
      none_of(data.packed_rows(0, 0)); // no sequence
      inputs no_tokens; // sequences of length 0
      no_tokens.logp_new = at::zeros({0}, at::kDouble);
      no_tokens.logp_prox = no_tokens.logp_behav = no_tokens.logp_ref = no_tokens.logp_new;
      no_tokens.advantages = no_tokens.logp_new;
      no_tokens.rewards = at::zeros({2}, at::kDouble);
      no_tokens.cu_seqlens = {0, 0, 0};
      none_of(no_tokens);
    }
}

TEST_CASE("advantages, the critic and diagnostics never yield NaN") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random{seed};
    random_batch data{random, 4, 6};
    poison(data, random);
    if (seed % 10 == 0)
      std::fill(data.mask.begin(), data.mask.end(), 0);
    auto in = data.padded(seed % 2 == 0 ? at::kDouble : at::kFloat);
    advantage_inputs a{.rewards = in.rewards, .group_ids = at::zeros({4}, at::kLong),
                       .token_rewards = in.logp_ref, .values = in.logp_prox,
                       .log_ratio = in.logp_new, .mask = in.mask};
    if (seed % 3 == 0)
      a.token_rewards = at::Tensor();
    for (const auto& name : builtin_advantages().names()) {
      INFO(name);
      auto out = make_advantage(name, {})->compute(a);
      REQUIRE_FALSE(has_nan(out.advantages));
      if (out.returns.defined())
        REQUIRE_FALSE(has_nan(out.returns));
    }
    auto shaped = kl_reward(in.logp_behav, in.logp_ref, a, {});
    REQUIRE_FALSE(has_nan(shaped.token_rewards));
    value_inputs v{in.logp_new.clone().set_requires_grad(true), in.logp_prox, in.logp_ref, in.mask};
    auto critic = ppo_value_clip(v, {{"eps", 0.5}});
    critic.loss.backward();
    REQUIRE_FALSE(has_nan(critic.loss));
    REQUIRE_FALSE(has_nan(v.values.grad()));
    auto tokens = mismatch_stats(in.logp_prox, in.logp_behav, in.mask, 2, 1.1);
    for (const auto& stat : tokens.all())
      REQUIRE_FALSE(std::isnan(stat.value));
    auto sequences = sequence_stats(in.logp_prox, in.logp_behav, in.mask, {}, 2, 1.1);
    for (const auto& stat : sequences.stats.all()) {
      INFO(stat.name);
      REQUIRE_FALSE(std::isnan(stat.value));
    }
  }
}
