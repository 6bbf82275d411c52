#include "policy_loss/checks.hpp"

#include "runtime/config/settings.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>

using namespace millrace::policy_loss;

namespace {

/// A configuration with which nothing is wrong.
algorithm_facts sound() {
  algorithm_facts f;
  f.loss = "decoupled_ppo";
  f.loss_params = {{"eps", 0.2}, {"bw_upper", 5}};
  f.group_size = 8;
  f.minibatches = 4;
  f.eta = 4;
  return f;
}

const finding* find(const std::vector<finding>& all, const std::string& id) {
  auto found = std::find_if(all.begin(), all.end(), [&](const finding& f) { return f.id == id; });
  return found == all.end() ? nullptr : &*found;
}

struct change {
  std::string id;
  severity level;
  std::string path;
  std::function<void(algorithm_facts&)> make;
};

std::vector<change> changes() {
  using f = algorithm_facts&;
  constexpr auto refuse = severity::refuse;
  constexpr auto explain = severity::explain;
  const std::string p = "algorithm.loss.params.";
  return {
    {"r1_always_one", explain, "trainer.minibatches", [](f a) { a.minibatches = 1; }},
    {"r1_always_one", explain, "trainer.minibatches",
     [](f a) { a.minibatches = 1, a.eta = 0, a.old_logits = "snapshot"; }},
    {"r2_always_one", explain, "algorithm.old_logits", [](f a) { a.old_logits = "behaviour"; }},
    {"eta_not_enforced", refuse, "rollout.eta", [](f a) { a.eta_enforced = false; }},
    {"stale_without_weight", explain, "algorithm.loss.name", [](f a) { a.loss = "ppo_clip"; }},
    {"stale_without_weight", explain, "algorithm.loss.name",
     [](f a) {
       a.loss = "tis_ppo", a.loss_params = {{"weight_mode", "none"}};
     }},
    {"no_policy_gradient", explain, "algorithm.loss.name", [](f a) { a.loss = "kl_in_loss"; }},
    {"dual_clip_too_small", refuse, p + "dual_clip_c",
     [](f a) { a.loss_params["dual_clip_c"] = 1; }},
    {"clip_of_zero", refuse, p + "eps_high", [](f a) { a.loss_params["eps"] = 0; }},
    {"clamp_inside_clip", refuse, p + "log_ratio_clamp",
     [](f a) { a.loss_params["log_ratio_clamp"] = 0.1; }},
    {"cap_off", explain, p + "bw_upper", [](f a) { a.loss_params["bw_upper"] = "inf"; }},
    {"cap_off", explain, p + "bw_upper", [](f a) { a.loss_params.erase("bw_upper"); }},
    {"cap_off", explain, p + "rho",
     [](f a) {
       a.loss = "aipo", a.loss_params = {{"rho", "inf"}};
     }},
    {"cap_off", explain, p + "imp_samp_max",
     [](f a) {
       a.loss = "hilton_decoupled", a.loss_params = {{"imp_samp_max", 0}};
     }},
    {"cap_off", explain, p + "tis_cap",
     [](f a) {
       a.loss = "minirl", a.loss_params = {{"tis_cap", "inf"}};
     }},
    {"cap_off", explain, p + "disc_high",
     [](f a) { a.loss = "tis_ppo", a.loss_params = nlohmann::json::object(); }},
    {"clamp_without_cap", refuse, p + "weight_cap",
     [](f a) {
       a.loss = "tis_ppo", a.loss_params = {{"weight_mode", "clamp"}};
     }},
    {"mask_excludes_one", refuse, p + "disc_high",
     [](f a) {
       a.loss = "mis_decoupled", a.loss_params = {{"disc_high", 0.9}};
     }},
    {"mask_excludes_one", refuse, p + "bw_lower", [](f a) { a.loss_params["bw_lower"] = 1.5; }},
    {"gspo_token_cap", refuse, p + "bw_upper", [](f a) { a.loss = "gspo"; }},
    {"gspo_wide_clip", explain, p + "eps_high",
     [](f a) {
       a.loss = "gspo", a.loss_params = {{"eps", 0.2}};
     }},
    {"gspo_aggregation", explain, "algorithm.aggregation",
     [](f a) {
       a.loss = "gspo", a.loss_params = {{"eps", 3e-4}};
     }},
    {"proxy_at_end", explain, p + "w_behav",
     [](f a) {
       a.loss = "proxy_interp", a.loss_params = {{"w_behav", 0}, {"disc_high", 2}};
     }},
    {"proxy_at_end", explain, "algorithm.proxy_weight",
     [](f a) { a.old_logits = "loglinear", a.proxy_weight = 1; }},
    {"proxy_ignores_old_logits", explain, "algorithm.old_logits",
     [](f a) { a.loss = "proxy_interp", a.old_logits = "ewma"; }},
    {"proxy_widens_clip", explain, "algorithm.old_logits",
     [](f a) { a.loss = "ppo_clip", a.old_logits = "loglinear"; }},
    {"ewma_resets_always", refuse, "algorithm.ewma.reset_below",
     [](f a) { a.old_logits = "ewma", a.ewma_reset_below = 1; }},
    {"ewma_never_resets", explain, "algorithm.ewma.reset_rule",
     [](f a) { a.loss = "ppo_clip", a.old_logits = "ewma", a.ewma_reset_below = 0.9; }},
    {"ewma_unused", explain, "algorithm.old_logits",
     [](f a) {
       a.loss = "aipo", a.loss_params = {{"rho", 2}}, a.old_logits = "ewma";
     }},
    {"kl_without_reference", refuse, "algorithm.kl.reference", [](f a) { a.kl_in_loss = 0.1; }},
    {"kl_without_reference", refuse, "algorithm.kl.reference", [](f a) { a.kl_in_reward = 0.1; }},
    {"kl_without_reference", refuse, "algorithm.kl.reference",
     [](f a) { a.loss_params["kl_beta"] = 0.04; }},
    {"kl_twice", explain, p + "kl_beta",
     [](f a) { a.loss_params["kl_beta"] = 0.04, a.kl_in_loss = 0.1, a.has_reference = true; }},
    {"k1_in_loss", explain, "algorithm.kl.estimator",
     [](f a) { a.kl_in_loss = 0.1, a.has_reference = true, a.kl_estimator = "k1"; }},
    {"k3_in_reward", explain, "algorithm.kl.estimator",
     [](f a) { a.kl_in_reward = 0.1, a.has_reference = true; }},
    {"group_of_one", refuse, "rollout.group_size", [](f a) { a.group_size = 1; }},
    {"group_of_two", explain, "rollout.group_size", [](f a) { a.group_size = 2; }},
    {"no_critic", refuse, "algorithm.advantage.name", [](f a) { a.advantage = "gae"; }},
    {"weight_twice", explain, "algorithm.advantage.name",
     [](f a) { a.advantage = "vtrace", a.loss = "aipo", a.has_critic = true; }},
    {"not_llamarl", explain, "algorithm.loss.name", [](f a) { a.loss = "aipo_clamped_ratio"; }},
    {"temperatures_differ", refuse, "sampling.temperature", [](f a) { a.temperature = 0.7; }},
    {"greedy_sampling", refuse, "sampling.temperature",
     [](f a) { a.temperature = a.train_temperature = 0; }},
    {"truncated_sampling", explain, "sampling.top_p", [](f a) { a.top_p = 0.9; }},
    {"truncated_sampling", explain, "sampling.top_k", [](f a) { a.top_k = 50; }},
    {"truncated_sampling", explain, "sampling.min_p", [](f a) { a.min_p = 0.05; }},
  };
}

} // namespace

TEST_CASE("a sound configuration has no findings") {
  for (const auto& f : check(sound()))
    FAIL(to_string(f));
}

TEST_CASE("what quietly changes the mathematics is found, with path, consequence and remedy") {
  for (const auto& one : changes()) {
    auto facts = sound();
    one.make(facts);
    auto all = check(facts);
    INFO(one.id << " at " << one.path << ", found " << all.size());
    const auto* found = find(all, one.id);
    REQUIRE(found != nullptr);
    REQUIRE(found->level == one.level);
    REQUIRE(found->path == one.path);
    REQUIRE(found->what.size() > 20);
    REQUIRE_FALSE(found->set.empty());
  }
}

TEST_CASE("what is right is not complained about") {
  auto f = sound();
  f.loss = "ppo_clip";
  f.loss_params = {{"eps", 0.2}, {"dual_clip_c", 3}};
  f.old_logits = "behaviour"; // staleness is in the one ratio, which is clipped
  REQUIRE(check(f).empty());
  f.old_logits = "snapshot"; // exact, and stale on purpose
  f.minibatches = 1;
  REQUIRE(check(f).empty());
  f.loss = "gspo";
  f.loss_params = {{"eps_low", 3e-4}, {"eps_high", 4e-4}};
  f.aggregation = "seq_mean_token_mean";
  REQUIRE(check(f).empty());
  f = sound();
  f.group_size = 1;
  f.advantage = "reinforce_plus_plus";
  REQUIRE(check(f).empty());
  f.loss_params = "ill-typed"; // make_loss's matter
  REQUIRE_NOTHROW(check(f));
}

TEST_CASE("facts are read off the settings") {
  millrace::settings s;
  s.algorithm.loss.name = "aipo";
  s.algorithm.kl.coefficient = 0.1;
  s.algorithm.kl.place = millrace::kl_place::reward;
  s.rollout.eta = 3;
  auto f = facts_of(s);
  REQUIRE(f.loss == "aipo");
  REQUIRE(f.kl_in_reward == 0.1);
  REQUIRE(f.kl_in_loss == 0);
  REQUIRE_FALSE(f.has_reference);
  REQUIRE(f.eta == 3);
  REQUIRE(find(check(f), "kl_without_reference") != nullptr);
}
