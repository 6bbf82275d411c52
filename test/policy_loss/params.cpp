#include "policy_loss/advantage.hpp"
#include "policy_loss/loss.hpp"
#include "policy_loss/token_loss.hpp"

#include <ATen/ops/ones.h>

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::policy_loss;
using Catch::Matchers::Contains;

TEST_CASE("errors of names and parameters say where, what was found and what is near") {
  REQUIRE_THROWS_WITH(make_loss("ppo_clap", {}),
                      Contains("algorithm.loss") && Contains("ppo_clap") && Contains("ppo_clip"));
  REQUIRE_THROWS_WITH(make_loss("ppo", {}), Contains("decoupled_ppo"));
  REQUIRE_THROWS_WITH(make_loss("ppo_clip", {{"epss", 0.2}}),
                      Contains("epss") && Contains("\"eps\""));
  REQUIRE_THROWS_WITH(make_loss("ppo_clip", {{"eps", "wide"}}),
                      Contains("algorithm.loss.eps") && Contains("wide") && Contains("number"));
  REQUIRE_THROWS_WITH(make_loss("ppo_clip", {{"eps", -1}}), Contains(">= 0"));
  REQUIRE_THROWS_WITH(make_loss("ppo_clip", {{"agg", "mean"}}), Contains("token_mean"));
  REQUIRE_THROWS_WITH(make_loss("ppo_clip", {{"agg", "fixed_length"}}), Contains("fixed_length"));
  REQUIRE_THROWS_WITH(make_loss("decoupled_ppo", {{"bw_upper", 1}, {"bw_lower", 2}}),
                      Contains("bw_lower"));
  REQUIRE_THROWS_WITH(make_loss("ppo_clip", nlohmann::json::array()), Contains("object"));
  REQUIRE_THROWS_WITH(make_advantage("grpoo", {}),
                      Contains("grpo") && Contains("algorithm.advantage"));
  REQUIRE_THROWS_AS(make_advantage("grpo", {{"ddof", 2}}), user_error);
  REQUIRE_THROWS_AS(make_advantage("grpo", {{"ddof", 0.5}}), user_error);
  REQUIRE_THROWS_AS(make_advantage("gae", {{"whiten", 1}}), user_error);
  REQUIRE_THROWS_AS(make_advantage("rloo", {{"eps", 1}}), user_error);
  REQUIRE_NOTHROW(make_loss("aipo", {{"rho", "inf"}}));
  REQUIRE_NOTHROW(make_loss("ppo_clip", nullptr));
}

TEST_CASE("names of the field lead to what they are here") {
  REQUIRE_THROWS_WITH(make_loss("grpo", {}), Contains("algorithm.loss") && Contains("advantage \"grpo\"")
                                               && !Contains("gppo"));
  for (const char* name : {"DAPO", "Dr. GRPO", "TIS", "icepop", "LlamaRL", "AReaL", "REINFORCE", "gae"})
    REQUIRE_THROWS_WITH(make_loss(name, {}), Contains(name) && Contains("there is no loss"));
  REQUIRE_THROWS_WITH(make_advantage("gspo", {}), Contains("a loss: algorithm.loss.name"));
  REQUIRE_THROWS_WITH(make_advantage("reinforce++", {}), Contains("\"reinforce_plus_plus\""));
  REQUIRE_THROWS_WITH(make_advantage("PPO", {}), Contains("\"gae\""));
  auto known = builtin_losses(); // a plugin may have this name
  known.add("grpo", [](param_reader& p) { return builtin_losses().make("ppo_clip", p.rest(), "x"); });
  REQUIRE_NOTHROW(make_loss("grpo", {}, known));
}

TEST_CASE("a missing input is named") {
  inputs in;
  in.logp_new = at::ones({1, 2});
  REQUIRE_THROWS_WITH(make_loss("ppo_clip", {})->compute(in), Contains("logp_prox"));
  in.logp_prox = in.logp_new;
  REQUIRE_THROWS_WITH(make_loss("ppo_clip", {})->compute(in), Contains("advantages"));
  in.advantages = in.logp_new;
  REQUIRE_THROWS_WITH(make_loss("ppo_clip", {{"kl_beta", 1}})->compute(in), Contains("logp_ref"));
  REQUIRE_THROWS_WITH(make_loss("decoupled_ppo", {})->compute(in), Contains("logp_behav"));
  in.advantages = at::ones({2, 2});
  REQUIRE_THROWS_AS(make_loss("ppo_clip", {})->compute(in), invariant_error);
  in.advantages = in.logp_new;
  in.cu_seqlens = {0, 2};
  REQUIRE_THROWS_AS(make_loss("ppo_clip", {})->compute(in), invariant_error);
}

TEST_CASE("needs() says what is read") {
  REQUIRE(make_loss("ppo_clip", {})->needs().prox);
  REQUIRE_FALSE(make_loss("ppo_clip", {})->needs().ref);
  REQUIRE(make_loss("ppo_clip", {{"kl_beta", 0.1}})->needs().ref);
  REQUIRE_FALSE(make_loss("aipo", {})->needs().prox);
  REQUIRE(make_loss("gspo", {})->needs().sequences_whole);
  REQUIRE(make_loss("m2po", {})->needs().batch_whole);
  REQUIRE(make_loss("topr", {{"positive_rule", "reward>0"}})->needs().rewards);
  REQUIRE(make_loss("tis_ppo", {{"denominator", "kept"}})->needs().kept_counts);
}

TEST_CASE("every parameter is described where it is read") {
  for (const auto& name : builtin_losses().names())
    for (const auto& p : builtin_losses().describe(name)) {
      INFO(name << '.' << p.name);
      REQUIRE_FALSE(p.meaning.empty());
      REQUIRE_FALSE(p.type.empty());
    }
}

namespace {

/// What a plugin would write.
class advantage_only : public token_loss {
public:
  explicit advantage_only(param_reader& params)
    : token_loss("advantage_only", params), factor_(params.number("factor", 1, {}, "a factor")) {}

protected:
  requirements method_needs() const override { return {}; }
  term evaluate(batch& b) const override {
    term t;
    t.value = b.advantages().mul(-factor_).mul(b.clean_logp_new());
    return t;
  }

private:
  double factor_;
};

} // namespace

TEST_CASE("a plugin adds a loss to its own copy of the registry") {
  auto known = builtin_losses();
  auto make = [](param_reader& params) { return std::make_unique<advantage_only>(params); };
  known.add("advantage_only", make);
  REQUIRE_THROWS_AS(known.add("ppo_clip", make), user_error);
  inputs in;
  in.logp_new = at::ones({1, 2});
  in.advantages = in.logp_new;
  auto loss = make_loss("advantage_only", {{"factor", 3}, {"agg", "token_mean"}}, known);
  REQUIRE(loss->compute(in).loss.item<double>() == -3);
  REQUIRE_THROWS_AS(make_loss("advantage_only", {}), user_error);
}
