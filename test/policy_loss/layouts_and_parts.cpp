#include "random_batch.hpp"

#include "policy_loss/losses/m2po.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <catch2/catch.hpp>

using namespace millrace::policy_loss;
using namespace millrace::policy_loss::testing;

namespace {

nlohmann::json merged(nlohmann::json a, const nlohmann::json& b) {
  a.update(b);
  return a;
}

/// The entries of a padded tensor that the packed layout has.
at::Tensor without_padding(const at::Tensor& padded, const random_batch& data) {
  std::vector<at::Tensor> rows;
  for (std::int64_t row = 0; row < data.rows; ++row)
    rows.push_back(padded[row].narrow(0, 0, data.lengths[static_cast<std::size_t>(row)]));
  return at::cat(rows);
}

/// Tokens [first, last) of a packed batch, as one part; for losses that look at single tokens only.
inputs slice(const inputs& whole, std::int64_t first, std::int64_t last) {
  auto part = whole;
  for (auto* t : {&part.logp_new, &part.logp_prox, &part.logp_behav, &part.logp_ref,
                  &part.advantages, &part.mask, &part.keep})
    if (t->defined())
      *t = t->narrow(0, first, last - first);
  part.cu_seqlens = {0, static_cast<std::int32_t>(last - first)};
  part.rewards = at::Tensor();
  return part;
}

counts global_counts(const loss& method, const inputs& whole) {
  auto result = count(whole);
  if (method.needs().kept_counts) {
    auto local = method.compute(whole).local;
    result.kept_tokens = local.kept_tokens;
    result.kept_sequences = local.kept_sequences;
  }
  return result;
}

} // namespace

TEST_CASE("packed and padded layouts give the same numbers") {
  std::uint64_t seed = 100;
  for (const auto& one : examples())
    for (const auto& aggregation : some_aggregations(seed)) {
      auto params = merged(one.params, aggregation);
      std::mt19937_64 random{++seed};
      random_batch data{random, 5, 7};
      INFO("seed " << seed << ", " << one.name << ' ' << params.dump());
      auto method = make_loss(one.name, params);
      auto padded = evaluate(*method, data.padded());
      auto packed = evaluate(*method, data.packed());
      REQUIRE(std::abs((padded.out.loss - packed.out.loss).item<double>()) < 1e-13);
      REQUIRE(largest_difference(without_padding(padded.gradient, data), packed.gradient) < 1e-13);
      REQUIRE(largest_difference(without_padding(padded.out.weight, data), packed.out.weight)
              < 1e-12);
      REQUIRE(without_padding(padded.out.keep, data).equal(packed.out.keep));
      REQUIRE(without_padding(padded.out.active, data).equal(packed.out.active));
      REQUIRE(padded.out.stats.all().size() == packed.out.stats.all().size());
      for (const auto& stat : padded.out.stats.all()) {
        INFO(stat.name);
        REQUIRE(packed.out.stats.get(stat.name) == Approx(stat.value).margin(1e-12));
      }
      REQUIRE(padded.out.local.tokens == packed.out.local.tokens);
    }
}

TEST_CASE("micro-batches at sequence borders add up to the whole batch") {
  std::uint64_t seed = 500;
  for (const auto& one : examples())
    for (const auto& aggregation : some_aggregations(seed)) {
      auto params = merged(one.params, aggregation);
      std::mt19937_64 random{++seed};
      random_batch data{random, 6, 6};
      INFO("seed " << seed << ", " << one.name << ' ' << params.dump());
      auto method = make_loss(one.name, params);
      auto batch = data.packed();
      auto whole = evaluate(*method, batch);
      auto global = global_counts(*method, batch);
      auto kept = whole.out.keep;
      std::uniform_int_distribution<std::int64_t> border{0, data.rows};
      auto first = border(random), second = border(random);
      std::vector<std::int64_t> borders{0, std::min(first, second), std::max(first, second),
                                        data.rows};
      auto loss = 0.0;
      std::vector<at::Tensor> gradients;
      statistics stats;
      std::int64_t token = 0;
      for (std::size_t k = 0; k + 1 < borders.size(); ++k) {
        auto part = data.packed_rows(borders[k], borders[k + 1]);
        part.global = global;
        if (method->needs().batch_whole)
          part.keep = kept.narrow(0, token, part.logp_new.numel());
        token += part.logp_new.numel();
        auto result = evaluate(*method, part);
        loss += result.out.loss.item<double>();
        gradients.push_back(result.gradient);
        stats.merge(result.out.stats);
      }
      REQUIRE(loss == Approx(whole.out.loss.item<double>()).epsilon(1e-12).margin(1e-14));
      REQUIRE(largest_difference(at::cat(gradients), whole.gradient) < 1e-13);
      for (const auto& stat : whole.out.stats.all())
        if (!stat.name.starts_with("m2_")) {
          INFO(stat.name);
          REQUIRE(stats.get(stat.name) == Approx(stat.value).epsilon(1e-12).margin(1e-13));
        }
    }
}

TEST_CASE("token-mean over any split of the tokens equals the whole batch") {
  std::uint64_t seed = 900;
  for (const auto& one : examples())
    for (int repeat = 0; repeat < 5; ++repeat) {
      auto method = make_loss(one.name, one.params);
      if (method->needs().sequences_whole || method->needs().rewards)
        continue;
      std::mt19937_64 random{++seed};
      INFO("seed " << seed << ", " << one.name << ' ' << one.params.dump());
      random_batch data{random, 5, 9};
      auto batch = data.packed();
      auto whole = evaluate(*method, batch);
      if (method->needs().batch_whole)
        batch.keep = whole.out.keep;
      batch.global = count(batch);
      auto n = batch.logp_new.numel();
      std::vector<std::int64_t> borders{0, n};
      std::uniform_int_distribution<std::int64_t> anywhere{0, n};
      for (int k = 0; k < 4; ++k)
        borders.push_back(anywhere(random));
      std::sort(borders.begin(), borders.end());
      auto loss = 0.0;
      std::vector<at::Tensor> gradients;
      for (std::size_t k = 0; k + 1 < borders.size(); ++k) {
        auto result = evaluate(*method, slice(batch, borders[k], borders[k + 1]));
        loss += result.out.loss.item<double>();
        gradients.push_back(result.gradient);
      }
      REQUIRE(loss == Approx(whole.out.loss.item<double>()).epsilon(1e-12).margin(1e-14));
      REQUIRE(largest_difference(at::cat(gradients), whole.gradient) < 1e-13);
    }
}

TEST_CASE("a global count that lacks the kept ones is refused where they matter") {
  std::mt19937_64 random{7};
  random_batch data{random, 4, 5};
  auto in = data.packed();
  in.global = count(in);
  auto kept = make_loss("mis_decoupled", {{"disc_high", 1.1}, {"denominator", "kept"}});
  REQUIRE(kept->needs().kept_counts);
  REQUIRE_THROWS_AS(kept->compute(in), millrace::invariant_error);
  REQUIRE_NOTHROW(make_loss("mis_decoupled", {{"disc_high", 1.1}})->compute(in));
}

TEST_CASE("advantages may be given per sequence") {
  std::mt19937_64 random{8};
  random_batch data{random, 4, 5};
  auto in = data.packed();
  auto per_sequence = in.rewards;
  auto lengths = at::cat({in.rewards}); // spread by hand
  std::vector<at::Tensor> spread;
  for (std::int64_t s = 0; s < data.rows; ++s)
    spread.push_back(per_sequence[s].expand({data.lengths[static_cast<std::size_t>(s)]}));
  in.advantages = at::cat(spread);
  auto method = make_loss("ppo_clip", {{"eps", 0.2}});
  auto by_token = evaluate(*method, in);
  in.advantages = per_sequence;
  auto by_sequence = evaluate(*method, in);
  REQUIRE(by_token.gradient.equal(by_sequence.gradient));
}
