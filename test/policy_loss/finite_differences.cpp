#include "random_batch.hpp"
#include "reference_loss.hpp"

#include "policy_loss/value_loss.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <catch2/catch.hpp>

using namespace millrace::policy_loss;
using namespace millrace::policy_loss::testing;

namespace {

nlohmann::json merged(nlohmann::json a, const nlohmann::json& b) {
  a.update(b);
  return a;
}

/// Central differences of the plain reference, stop-gradients held.
std::vector<double> differences(const std::string& name, const nlohmann::json& params,
                                const random_batch& data) {
  std::vector<double> result;
  auto theta = data.logp_new;
  constexpr double h = 1e-6;
  for (std::size_t i = 0; i < theta.size(); ++i) {
    auto at_rest = theta[i];
    theta[i] = at_rest + h;
    auto above = reference_loss(name, params, data, theta, data.logp_new);
    theta[i] = at_rest - h;
    auto below = reference_loss(name, params, data, theta, data.logp_new);
    theta[i] = at_rest;
    result.push_back((above - below) / (2 * h));
  }
  return result;
}

} // namespace

TEST_CASE("every loss and its gradient agree with a plain reference and finite differences") {
  std::set<std::string> covered;
  std::uint64_t seed = 20'000;
  for (const auto& one : examples())
    for (const auto& aggregation : aggregations()) {
      ++seed;
      covered.insert(one.name);
      auto params = merged(one.params, aggregation);
      std::mt19937_64 random{seed};
      random_batch data{random, 5, 6};
      INFO("seed " << seed << ", " << one.name << ' ' << params.dump());
      auto result = evaluate(*make_loss(one.name, params), data.padded());
      auto value = reference_loss(one.name, params, data, data.logp_new, data.logp_new);
      REQUIRE(result.out.loss.item<double>() == Approx(value).epsilon(1e-10).margin(1e-12));
      auto expected = differences(one.name, params, data);
      const auto* got = result.gradient.const_data_ptr<double>();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        INFO("token " << i);
        REQUIRE(got[i] == Approx(expected[i]).epsilon(1e-6).margin(2e-8));
      }
    }
  for (const auto& name : builtin_losses().names()) {
    INFO(name << " has no example");
    REQUIRE(covered.contains(name));
  }
}

TEST_CASE("the critic's clipped loss agrees with finite differences") {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random{seed};
    random_batch data{random, 4, 5};
    auto in = data.padded();
    value_inputs v{in.logp_new.clone().set_requires_grad(true), in.logp_prox, in.logp_ref, in.mask};
    nlohmann::json params{{"eps", 0.2}, {"agg", "seq_mean_token_mean"}};
    auto out = ppo_value_clip(v, params);
    out.loss.backward();
    auto gradient = v.values.grad();
    for (std::int64_t i = 0; i < in.logp_new.numel(); ++i) {
      auto at = [&](double h) {
        auto moved = v;
        moved.values = in.logp_new.clone();
        moved.values.view({-1})[i] += h;
        return ppo_value_clip(moved, params).loss.item<double>();
      };
      REQUIRE(gradient.reshape({-1})[i].item<double>()
              == Approx((at(1e-6) - at(-1e-6)) / 2e-6).epsilon(1e-6).margin(1e-8));
    }
  }
}

TEST_CASE("an interpolated proxy keeps the same tokens as its bounds on the total ratio") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random{seed};
    std::uniform_real_distribution<double> share{0.1, 0.9}, width{0.02, 0.3};
    nlohmann::json params{{"interp", seed % 2 == 0 ? "loglinear" : "arithmetic"},
                          {"w_behav", share(random)}, {"eps", width(random)},
                          {"disc_low", 1 - width(random)}, {"disc_high", 1 + width(random)}};
    INFO("seed " << seed << ' ' << params.dump());
    random_batch data{random, 6, 8};
    auto out = make_loss("proxy_interp", params)->compute(data.padded());
    auto bound = [&](const char* name) {
      return out.stats.get(std::string("effective_bounds_total_ratio.") + name);
    };
    const auto* active = out.active.const_data_ptr<bool>();
    for (std::size_t i = 0; i < data.logp_new.size(); ++i) {
      auto r = std::exp(data.logp_new[i] - data.logp_behav[i]);
      auto a = data.advantages[i];
      auto expected = data.mask[i] != 0 && r <= bound("mask_upper") && r >= bound("mask_lower")
                      && !(a >= 0 && r > bound("ppo_upper")) && !(a < 0 && r < bound("ppo_lower"));
      REQUIRE(active[i] == expected);
    }
  }
}
