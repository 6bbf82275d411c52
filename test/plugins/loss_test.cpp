// A plugin's loss and advantage as policy_loss sees them.

#include "policy_loss/plugins.hpp"
#include "runtime/error.hpp"
#include "runtime/plugins/plugin.hpp"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::policy_loss;
using Catch::Matchers::Contains;

namespace {

void add_examples() {
  static const bool once = [] {
    for (const char* name : {"loss", "advantage"})
      add_plugin(plugins::load(std::string(PLUGINS "/lib") + name + ".so"));
    return true;
  }();
  static_cast<void>(once);
}

inputs random_batch(std::uint64_t seed) {
  at::manual_seed(seed);
  const std::int64_t n = 17;
  inputs in;
  auto base = -at::rand({n}, at::kDouble);
  in.logp_new = (base + 0.3 * at::randn({n}, at::kDouble)).requires_grad_();
  in.logp_prox = base + 0.3 * at::randn({n}, at::kDouble);
  in.logp_behav = base + 0.3 * at::randn({n}, at::kDouble);
  in.advantages = at::randn({n}, at::kDouble);
  in.mask = at::rand({n}) < 0.8;
  in.cu_seqlens = {0, 5, 5, 12, 17};
  return in;
}

at::Tensor gradient(const loss& l, const inputs& in) {
  auto copy = in;
  copy.logp_new = in.logp_new.detach().clone().requires_grad_();
  l.compute(copy).loss.backward();
  return copy.logp_new.grad();
}

at::Tensor by_differences(const loss& l, const inputs& in) {
  constexpr double h = 1e-6;
  auto out = at::zeros_like(in.logp_new);
  for (std::int64_t i = 0; i < in.logp_new.numel(); ++i) {
    const auto at_shift = [&](double d) {
      auto copy = in;
      copy.logp_new = in.logp_new.detach().clone();
      copy.logp_new[i] += d;
      return l.compute(copy).loss.item<double>();
    };
    out[i] = (at_shift(h) - at_shift(-h)) / (2 * h);
  }
  return out;
}

} // namespace

TEST_CASE("plugin loss: a per-token derivative equals the same loss written with tensors") {
  add_examples();
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    INFO("seed " << seed);
    auto in = random_batch(seed);
    auto l = make_loss("capped_reinforce", {{"cap", 1.2}, {"agg", "seq_mean_token_mean"}},
                       known_losses());
    REQUIRE(!l->needs().prox);
    REQUIRE(l->needs().behav);
    // AIPO with the same cap is the same loss.
    auto same = make_loss("aipo", {{"rho", 1.2}, {"agg", "seq_mean_token_mean"}});
    auto a = l->compute(in), b = same->compute(in);
    REQUIRE(a.local.tokens == b.local.tokens);
    REQUIRE(at::allclose(gradient(*l, in), gradient(*same, in), 1e-10, 1e-12));
  }
}

TEST_CASE("plugin loss: backward() of a loss over sequences agrees with differences") {
  add_examples();
  for (const char* agg : {"token_mean", "seq_mean_token_sum"})
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      INFO(agg << ", seed " << seed);
      auto in = random_batch(seed);
      auto l = make_loss("sequence_ratio", {{"agg", agg}}, known_losses());
      REQUIRE(l->needs().prox);
      REQUIRE(l->needs().sequences_whole);
      REQUIRE(at::allclose(gradient(*l, in), by_differences(*l, in), 1e-5, 1e-8));
    }
}

TEST_CASE("plugin loss: values that are not finite stay out, and wrong parameters are named") {
  add_examples();
  auto in = random_batch(3);
  auto damaged = in;
  damaged.logp_behav = in.logp_behav.clone();
  damaged.mask = at::ones({17}, at::kBool);
  damaged.logp_behav[2] = -std::numeric_limits<double>::infinity();
  auto l = make_loss("capped_reinforce", nlohmann::json::object(), known_losses());
  auto g = gradient(*l, damaged);
  REQUIRE(at::isfinite(g).all().item<bool>());
  REQUIRE(g[2].item<double>() == 0);
  REQUIRE_THROWS_WITH(make_loss("capped_reinforce", {{"cap", -1}}, known_losses()),
                      Contains("algorithm.loss.params.cap: found -1, expected more than 0")
                        && Contains("libloss.so"));
  REQUIRE_THROWS_WITH(make_loss("capped_reinforce", {{"cop", 1}}, known_losses()),
                      Contains("unknown key (did you mean \"cap\"?)"));
  REQUIRE_THROWS_WITH(make_loss("capped_reinforc", nlohmann::json::object(), known_losses()),
                      Contains("capped_reinforce"));
}

TEST_CASE("plugin advantage: ranks within each group, given to each valid token") {
  add_examples();
  auto a = make_advantage("rank", nlohmann::json::object(), known_advantages());
  advantage_inputs in;
  in.rewards = at::tensor({1.0, 5.0, 3.0, 7.0, 7.0}, at::kDouble);
  in.group_ids = at::tensor({0, 0, 0, 1, 1}, at::kLong);
  auto out = a->compute(in).advantages;
  REQUIRE(at::allclose(out, at::tensor({-1.0, 1.0, 0.0, 0.0, 0.0}, at::kDouble)));
  in.mask = at::tensor({1, 1, 0, 1, 1, 1, 1}, at::kInt).to(at::kBool);
  in.cu_seqlens = {0, 2, 4, 5, 6, 7};
  out = a->compute(in).advantages;
  REQUIRE(at::allclose(out, at::tensor({-1.0, -1.0, 0.0, 1.0, 0.0, 0.0, 0.0}, at::kDouble)));
}
