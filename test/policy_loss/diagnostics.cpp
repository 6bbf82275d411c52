#include "policy_loss/diagnostics.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch.hpp>

using namespace millrace::policy_loss;

TEST_CASE("the effective sample size is 1 for equal weights and 1/N for a single one") {
  REQUIRE(ess_fraction(std::vector<double>{3, 3, 3}) == Approx(1));
  REQUIRE(ess_fraction(std::vector<double>{0, 0, 5, 0}) == Approx(0.25));
  REQUIRE(ess_fraction(std::vector<double>{1e200, 1e200}) == Approx(1));
  REQUIRE(ess_fraction({}) == 1);
}

TEST_CASE("statistics merge by their rule, and parts without tokens say nothing") {
  statistics a, b, empty;
  a.add("mean", 1, 1);
  a.add("max", -5, 1, merge_rule::max);
  a.add("sum", 2, 1, merge_rule::sum);
  b.add("mean", 4, 2);
  b.add("max", -7, 2, merge_rule::max);
  b.add("sum", 3, 2, merge_rule::sum);
  b.add("only_here", 9, 2);
  empty.add("mean", 0, 0);
  empty.add("max", 0, 0, merge_rule::max);
  a.merge(empty);
  a.merge(b);
  REQUIRE(a.get("mean") == Approx(3));
  REQUIRE(a.get("max") == -5);
  REQUIRE(a.get("sum") == 5);
  REQUIRE(a.get("only_here") == 9);
  REQUIRE(a.find("missing") == nullptr);
  empty.merge(b);
  REQUIRE(empty.get("max") == -7);
}

TEST_CASE("on policy nothing is off") {
  auto logp = at::full({2, 3}, -0.7, at::kDouble);
  auto mask = at::full({2, 3}, true, at::kBool);
  auto stats = mismatch_stats(logp, logp, mask, 2, 1.1);
  REQUIRE(stats.get("ess_frac") == Approx(1));
  REQUIRE(stats.get("kl_infer_train_k3") == 0);
  REQUIRE(stats.get("mask_frac_token") == 0);
  auto sequences = sequence_stats(logp, logp, mask, {}, 2, 1.1);
  REQUIRE(sequences.stats.get("seq_ess_frac") == Approx(1));
  REQUIRE(sequences.stats.get("chi2_seq") == Approx(0).margin(1e-12));
  REQUIRE(sequences.stats.get("ppl_ratio") == Approx(1));
}

TEST_CASE("sequence statistics: products, geometric means and perplexities") {
  auto train = at::tensor({-1.0, -1.0, -2.0, -0.5}, at::kDouble);
  auto infer = at::tensor({-1.5, -1.0, -2.0, -0.75}, at::kDouble);
  auto mask = at::full({4}, true, at::kBool);
  auto result = sequence_stats(train, infer, mask, {0, 2, 2, 4}, 2, 1.2);
  REQUIRE(result.seq_ratio[0].item<double>() == Approx(std::exp(0.5)));
  REQUIRE(result.geo_ratio[0].item<double>() == Approx(std::exp(0.25)));
  REQUIRE(result.seq_ratio[1].item<double>() == 1);
  REQUIRE(result.lengths[1].item<double>() == 0);
  REQUIRE(result.stats.get("train_ppl") == Approx((std::exp(1.0) + std::exp(1.25)) / 2));
  REQUIRE(result.stats.get("log_ppl_diff_mean") == Approx(-(0.25 + 0.125) / 2));
  REQUIRE(result.stats.get("mask_frac_seq") == 1);
  REQUIRE(result.stats.get("mask_frac_geo") == 0.5);
}

TEST_CASE("staleness statistics skip prompts, padding and empty sequences") {
  auto versions = at::tensor({-1, 3, 5, -1, 4, 9}, at::kLong);
  auto mask = at::tensor({0, 1, 1, 0, 0, 1}, at::kInt).to(at::kBool);
  auto result = staleness_stats(versions, mask, {0, 3, 5, 6}, 9);
  REQUIRE(result.histogram == std::map<std::int64_t, std::int64_t>{{0, 1}, {4, 1}, {6, 1}});
  REQUIRE(result.head == std::vector<std::int64_t>{6, 0, 0});
  REQUIRE(result.tail == std::vector<std::int64_t>{4, 0, 0});
  REQUIRE(result.mixed_version_seq_frac == 0.5);
  REQUIRE(result.max == 6);
  auto none = staleness_stats(versions, at::zeros({6}, at::kBool), {0, 6}, 9);
  REQUIRE(none.histogram.empty());
  REQUIRE(none.mean == 0);
}

TEST_CASE("AReaL's admission rule at its borders") {
  REQUIRE(areal_admission(8, 8, 0, 0));
  REQUIRE_FALSE(areal_admission(9, 8, 0, 0));
  REQUIRE(areal_admission(9, 8, 0, 1));
  REQUIRE(areal_admission(24, 8, 2, 0));
  REQUIRE_FALSE(areal_admission(25, 8, 2, 0));
}
