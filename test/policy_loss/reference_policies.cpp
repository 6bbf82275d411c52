#include "policy_loss/reference/ewma.hpp"
#include "policy_loss/reference/proxy.hpp"
#include "policy_loss/reference/stitch.hpp"
#include "runtime/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch.hpp>

#include <cmath>
#include <random>

using namespace millrace;
using namespace millrace::policy_loss;

TEST_CASE("the EWMA is the normalised sum of all parameters since its start") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random{seed};
    std::normal_distribution<double> any{0, 1};
    std::uniform_real_distribution<double> decay{0, 0.99};
    auto beta = decay(random);
    std::vector<double> history{any(random)};
    auto tensor = [](double x) { return at::full({3}, x, at::kDouble); };
    ewma average{beta, {tensor(history[0])}};
    for (int step = 0; step < 40; ++step) {
      if (step == 25) {
        history = {any(random)};
        average.reset({tensor(history[0])});
      } else {
        history.push_back(any(random));
        average.update({tensor(history.back())});
      }
      double sum = 0, weights = 0;
      for (std::size_t k = 0; k < history.size(); ++k) {
        auto w = std::pow(beta, static_cast<double>(history.size() - 1 - k));
        sum += w * history[k];
        weights += w;
      }
      REQUIRE(average.total_weight() == Approx(weights));
      REQUIRE(average.average()[0][1].item<double>() == Approx(sum / weights).margin(1e-12));
    }
  }
}

TEST_CASE("bf16 parameters are averaged in fp32") {
  auto one = at::full({4}, 1.0, at::kBFloat16);
  ewma average{0.9, {one}};
  REQUIRE(average.average()[0].scalar_type() == at::kFloat);
  auto next = at::full({4}, 1.0078125, at::kBFloat16); // the next bf16 above 1
  average.update({next});
  auto got = average.average()[0][0].item<double>();
  REQUIRE(got > 1.0);
  REQUIRE(got < 1.0078125);
  REQUIRE_THROWS_AS(ewma(1.0, {one}), user_error);
  REQUIRE_THROWS_AS(average.update({}), invariant_error);
  average.restore(7, {at::full({4}, 2.0, at::kFloat)});
  REQUIRE(average.total_weight() == 7);
}

TEST_CASE("auto reset compares strictly, with the share its rule names") {
  ewma_auto_reset by_mask{0.9};
  REQUIRE_FALSE(by_mask.after_step(0.9, 0.1));
  REQUIRE(by_mask.after_step(0.899, 1));
  ewma_auto_reset by_both{0.9, reset_rule::mask_and_clip};
  REQUIRE(by_both.after_step(1, 0.5));
  REQUIRE_FALSE(by_both.after_step(0.1, 0.95));
}

TEST_CASE("effective bounds are where the factors meet their own bounds") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random{seed};
    std::uniform_real_distribution<double> share{0.05, 0.95}, width{0.01, 0.4};
    auto w = share(random), low = width(random), high = width(random);
    for (auto how : {interpolation::loglinear, interpolation::arithmetic}) {
      auto b = bounds_on_total_ratio(how, w, low, high, 1 - low, 1 + high);
      auto prox = [&](double r) { // with μ = 1, θ = r
        return how == interpolation::loglinear ? std::pow(r, 1 - w) : w + (1 - w) * r;
      };
      if (std::isfinite(b.ppo_upper))
        REQUIRE(b.ppo_upper / prox(b.ppo_upper) == Approx(1 + high));
      else
        REQUIRE((1 - w) * (1 + high) >= 1);
      REQUIRE(b.ppo_lower / prox(b.ppo_lower) == Approx(1 - low));
      REQUIRE(prox(b.mask_upper) == Approx(1 + high));
      if (b.mask_lower > 0)
        REQUIRE(prox(b.mask_lower) == Approx(1 - low));
    }
  }
  auto at_theta = bounds_on_total_ratio(interpolation::arithmetic, 0, 0.2, 0.2, 0.5, 2);
  REQUIRE(std::isinf(at_theta.ppo_upper));
  REQUIRE(at_theta.ppo_lower == 0);
  auto at_mu = bounds_on_total_ratio(interpolation::loglinear, 1, 0.2, 0.2, 0.5, 1);
  REQUIRE(std::isinf(at_mu.mask_upper));
  REQUIRE(at_mu.ppo_upper == Approx(1.2));
}

TEST_CASE("interpolation is exact at its ends, whatever the other end is") {
  auto infinite = at::full({2}, -INFINITY, at::kDouble), one = at::full({2}, -1.0, at::kDouble);
  for (auto how : {interpolation::loglinear, interpolation::arithmetic}) {
    REQUIRE(interpolate(how, 1.0, one, infinite).equal(one));
    REQUIRE(interpolate(how, 0.0, infinite, one).equal(one));
  }
}

TEST_CASE("stitching takes each token from its version and leaves the rest") {
  auto versions = at::arange(-1, 4, at::kLong).reshape({1, 5}); // −1 0 1 2 3
  std::map<std::int64_t, at::Tensor> rows{
    {0, at::full({1, 5}, -10.0)}, {2, at::full({1, 5}, -20.0)}, {-1, at::full({1, 5}, -99.0)}};
  auto result = stitch_by_version(rows, versions);
  REQUIRE(result.logp[0][0].item<double>() == 0);
  REQUIRE(result.logp[0][1].item<double>() == -10);
  REQUIRE(result.logp[0][3].item<double>() == -20);
  REQUIRE(result.found.sum().item<std::int64_t>() == 2);
  rows[1] = at::zeros({3});
  REQUIRE_THROWS_AS(stitch_by_version(rows, versions), invariant_error);
}
