#include "trainer/train_step.hpp"

#include "runtime/error.hpp"
#include "test/trainer/toy.hpp"
#include "trainer/step_batch.hpp"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include <limits>
#include <numeric>

using namespace millrace;
using namespace millrace::trainer;
using namespace millrace::toy;

namespace {

/// Passes everything on to a built-in loss, and lets a test see or change what goes through.
class probe final : public policy_loss::loss {
public:
  using seen = std::function<void(const policy_loss::inputs&, policy_loss::outputs&)>;
  probe(std::string inner, seen look)
      : inner_(policy_loss::make_loss(inner, {{"agg", "token_mean"}})), look_(std::move(look)) {}
  std::string_view name() const override { return "probe"; }
  policy_loss::requirements needs() const override { return inner_->needs(); }
  policy_loss::outputs compute(const policy_loss::inputs& in) const override {
    auto out = inner_->compute(in);
    look_(in, out);
    return out;
  }

private:
  std::unique_ptr<policy_loss::loss> inner_;
  seen look_;
};

registries with_probe(probe::seen look, const std::string& inner = "decoupled_ppo") {
  registries known;
  known.losses.add("probe", [=](policy_loss::param_reader& params) {
    params.choice("agg", {"token_mean"}, 0, "");
    return std::make_unique<probe>(inner, look);
  });
  return known;
}

settings probing(settings s = tiny_settings()) {
  s.algorithm.loss = {"probe"};
  return s;
}

std::vector<float> after_one_step(const settings& s, const std::vector<scored_group>& groups,
                                  version from, step_statistics* stats = nullptr,
                                  const registries& known = {}) {
  auto network = tiny_network();
  reinforcement trainer(network, s, known);
  auto result = trainer.step(from, groups);
  if (stats)
    *stats = result;
  return parameters(network.views());
}

} // namespace

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

TEST_CASE("the same inputs give the same parameters, bit for bit") {
  auto s = tiny_settings();
  s.trainer.minibatches = 2;
  s.trainer.epochs = 2;
  s.trainer.micro_batch_tokens = 40;
  auto groups = random_groups(3, 8, 4, {5}, 4);
  auto once = after_one_step(s, groups, {5});
  REQUIRE(same_bits(once, after_one_step(s, groups, {5})));
  s.seed = 99; // another split into minibatches
  REQUIRE(!same_bits(once, after_one_step(s, groups, {5})));
}

TEST_CASE("a token beyond eta, or from the future, never reaches the loss") {
  auto s = tiny_settings();
  s.rollout.eta = 2;
  auto network = tiny_network();
  auto before = parameters(network.views());
  reinforcement trainer(network, s);
  auto groups = random_groups(1, 2, 4, {7}, 2);
  for (auto bad : {4, 8}) {
    auto wrong = groups;
    wrong[1].rollouts[2].versions.back() = bad;
    REQUIRE_THROWS_AS(trainer.step({7}, wrong), invariant_error);
    REQUIRE(same_bits(before, parameters(network.views())));
  }
  auto stats = trainer.step({7}, groups);
  REQUIRE(stats.staleness_max <= 2);
  REQUIRE(stats.updates == 1);
}

TEST_CASE("recompute: old log-probs are those of the step's start, at every use") {
  for (auto epochs : {1, 2}) {
    auto network = tiny_network();
    auto frozen = network.frozen_copy();
    auto s = probing();
    s.trainer.minibatches = 3;
    s.trainer.epochs = epochs;
    s.trainer.micro_batch_tokens = 40;
    auto groups = random_groups(5, 9, 4, {5}, 4);
    step_batch reference({5}, groups, s);
    auto expected = at::zeros({reference.layout.tokens()}, at::kFloat);
    reference.scorer.fill(expected, frozen, reference.everything);
    // Behaviour log-probs are all different, so they tell which token is which.
    std::map<float, float> of;
    for (std::int64_t i = 0; i < expected.numel(); ++i)
      of[reference.behaviour[i].item<float>()] = expected[i].item<float>();
    REQUIRE(of.size() == static_cast<std::size_t>(expected.numel()));
    std::int64_t checked = 0, moved = 0;
    auto known = with_probe([&](const policy_loss::inputs& in, policy_loss::outputs&) {
      for (std::int64_t i = 0; i < in.logp_behav.numel(); ++i) {
        auto prox = in.logp_prox[i].item<float>();
        REQUIRE(prox == Approx(of.at(in.logp_behav[i].item<float>())).margin(1e-5));
        moved += std::abs(prox - in.logp_new[i].item<float>()) > 1e-4;
        ++checked;
      }
    });
    reinforcement trainer(network, s, known);
    auto stats = trainer.step({5}, groups);
    REQUIRE(checked == epochs * expected.numel());
    REQUIRE(moved > checked / 3);
    REQUIRE(stats.old_logits_served == std::map<std::string, std::int64_t>{
                                         {"recompute", expected.numel()}});
  }
}

TEST_CASE("proxies: behaviour, and interpolation by version") {
  auto groups = random_groups(5, 3, 4, {5}, 4);
  for (auto source : {old_logits_source::behaviour, old_logits_source::loglinear,
                      old_logits_source::arithmetic}) {
    auto s = probing();
    s.algorithm.old_logits = source;
    auto fresh = 0, between = 0;
    auto known = with_probe([&](const policy_loss::inputs& in, policy_loss::outputs&) {
      for (std::int64_t i = 0; i < in.logp_behav.numel(); ++i) {
        auto prox = in.logp_prox[i].item<double>(), mu = in.logp_behav[i].item<double>(),
             theta = in.logp_new[i].item<double>();
        if (prox == mu)
          ++fresh;
        else if (prox > std::min(mu, theta) && prox < std::max(mu, theta))
          ++between;
        else
          FAIL("outside");
      }
    });
    step_statistics stats;
    after_one_step(s, groups, {5}, &stats, known);
    if (source == old_logits_source::behaviour) {
      REQUIRE(between == 0);
    } else {
      REQUIRE(fresh == stats.staleness[0]); // α is 0 where there is no gap
      REQUIRE(between == stats.trained_tokens - stats.staleness[0]);
    }
  }
}

TEST_CASE("ewma: the average trails, resets when too little is kept, and is restored exactly") {
  auto s = tiny_settings();
  s.algorithm.old_logits = old_logits_source::ewma;
  s.algorithm.ewma = {.window = 2}; // β = 1/2
  auto network = tiny_network();
  reinforcement trainer(network, s);
  auto average = [&](const reinforcement& t) {
    std::vector<tensor_view> views;
    for (auto& v : t.tensors())
      if (v.name.starts_with("ewma/"))
        views.push_back(v);
    return parameters(views);
  };
  auto theta0 = parameters(network.views());
  REQUIRE(average(trainer) == theta0);
  trainer.step({0}, random_groups(1, 4, 4, {0}, 0));
  auto theta1 = parameters(network.views());
  auto averaged = average(trainer);
  // W' = β·1 + 1 = 1.5; θ_p = (0.5·θ0 + θ1)/1.5
  for (std::size_t i = 0; i < theta0.size(); ++i)
    REQUIRE(averaged[i] == Approx((0.5 * theta0[i] + theta1[i]) / 1.5).margin(1e-6));
  REQUIRE(trainer.state()["old_logits"]["total_weight"] == 1.5);

  s.algorithm.ewma = {.window = 2, .reset_below = 1.0,
                      .reset_rule = ewma_reset_rule::mask_and_clip};
  s.algorithm.loss.params = {{"eps", 1e-4}}; // nearly everything is clipped
  s.trainer.epochs = 3;
  reinforcement strict(network, s);
  REQUIRE(strict.step({1}, random_groups(2, 4, 4, {1}, 1)).ewma_reset);
  REQUIRE(average(strict) == parameters(network.views()));
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

TEST_CASE("statistics of a step") {
  auto s = tiny_settings();
  auto groups = random_groups(2, 5, 4, {6}, 4);
  double sum = 0;
  std::int64_t tokens = 0, same = 0;
  for (const auto& g : groups) {
    std::set<float> rewards;
    for (const auto& r : g.rollouts) {
      sum += r.reward;
      rewards.insert(r.reward);
      tokens += r.generated();
    }
    same += rewards.size() == 1;
  }
  step_statistics stats;
  after_one_step(s, groups, {6}, &stats);
  REQUIRE(stats.trained_from == version{6});
  REQUIRE(stats.rollouts == 20);
  REQUIRE(stats.groups == 5);
  REQUIRE(stats.reward_mean == Approx(sum / 20));
  REQUIRE(stats.zero_variance_groups == same);
  REQUIRE(stats.trained_tokens == tokens);
  std::int64_t in_histogram = 0;
  double staleness_sum = 0;
  for (std::size_t i = 0; i < stats.staleness.size(); ++i) {
    in_histogram += stats.staleness[i];
    staleness_sum += static_cast<double>(i) * static_cast<double>(stats.staleness[i]);
  }
  REQUIRE(in_histogram == tokens);
  REQUIRE(stats.staleness_mean == Approx(staleness_sum / static_cast<double>(tokens)));
  REQUIRE(stats.ess > 0);
  REQUIRE(stats.ess < 1);
  REQUIRE(stats.entropy == Approx(std::log(12)).margin(0.2)); // an untrained network is unsure
  REQUIRE(stats.seconds.total > 0);
  REQUIRE(stats.values().at("trained_tokens") == static_cast<double>(tokens));
}

TEST_CASE("batches with nothing in them") {
  auto s = tiny_settings();
  auto network = tiny_network();
  auto before = parameters(network.views());
  reinforcement trainer(network, s);
  auto none = trainer.step({0}, {});
  REQUIRE(none.updates == 0);
  auto groups = random_groups(1, 1, 2, {0}, 0);
  for (auto& r : groups[0].rollouts)
    std::fill(r.versions.begin(), r.versions.end(), -1); // all masked
  REQUIRE(trainer.step({0}, groups).updates == 0);
  REQUIRE(same_bits(before, parameters(network.views())));
}

TEST_CASE("a KL penalty holds the policy near its reference") {
  auto distance = [](kl_settings kl) {
    auto s = tiny_settings();
    s.trainer.minibatches = 2;
    s.algorithm.kl = kl;
    auto network = tiny_network();
    reinforcement trainer(network, s);
    step_statistics last;
    for (int v = 0; v < 15; ++v)
      last = trainer.step({v}, random_groups(7, 6, 4, {v}, 0));
    return std::pair{last.kl_reference, last.kl_loss};
  };
  auto [free, nothing] = distance({1e-6, kl_estimator::k3, kl_place::loss, kl_reference::initial});
  auto [held, penalty] = distance({2, kl_estimator::k3, kl_place::loss, kl_reference::initial});
  REQUIRE(free > 0);
  REQUIRE(held < free / 2);
  REQUIRE(penalty > nothing);
}

TEST_CASE("settings that don't fit are refused with what to set") {
  auto network = tiny_network();
  auto s = tiny_settings();
  s.algorithm.loss.name = "decoupled_pop";
  REQUIRE_THROWS_WITH(reinforcement(network, s), Catch::Contains("decoupled_ppo"));
  s = tiny_settings();
  s.algorithm.advantage.name = "gae";
  REQUIRE_THROWS_WITH(reinforcement(network, s), Catch::Contains("critic"));
  s = tiny_settings();
  s.algorithm.kl.coefficient = 0.1;
  REQUIRE_THROWS_WITH(reinforcement(network, s), Catch::Contains("algorithm.kl.reference"));
  s = tiny_settings();
  s.trainer.micro_batch_tokens = 30;
  s.trainer.minibatches = 4;
  reinforcement tight(network, s);
  auto before = parameters(network.views());
  auto groups = random_groups(1, 4, 4, {0}, 0);
  auto& r = groups[2].rollouts[1];
  r.tokens.resize(31, 1);
  r.versions.resize(31, 0);
  r.behaviour_logp.resize(31, -2);
  REQUIRE_THROWS_AS(tight.step({0}, groups), user_error);
  REQUIRE(same_bits(before, parameters(network.views()))); // not after the first minibatch
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
