#include "policy_loss/checks.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

namespace millrace::policy_loss {

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

template <std::size_t N>
bool among(std::string_view name, const std::array<std::string_view, N>& set) {
  return std::find(set.begin(), set.end(), name) != set.end();
}

// What each loss looks at.
constexpr std::array<std::string_view, 9> with_prox{
  "ppo_clip", "decoupled_ppo", "hilton_decoupled", "mis_decoupled", "tis_ppo",
  "cispo",    "gspo",          "gppo",             "minirl"};
constexpr std::array<std::string_view, 4> with_prox_only{"ppo_clip", "cispo", "gspo", "gppo"};
constexpr std::array<std::string_view, 4> decoupled{"decoupled_ppo", "mis_decoupled", "tis_ppo",
                                                    "minirl"};
constexpr std::array<std::string_view, 3> discrepancy{"mis_decoupled", "tis_ppo", "proxy_interp"};
constexpr std::array<std::string_view, 8> ppo_clipping{
  "ppo_clip", "decoupled_ppo", "hilton_decoupled", "mis_decoupled",
  "tis_ppo",  "proxy_interp",  "gspo",             "minirl"};
constexpr std::array<std::string_view, 3> exact_routes{"snapshot", "dedicated", "interrupt"};
constexpr std::array<std::string_view, 2> interpolated_routes{"loglinear", "arithmetic"};
constexpr std::array<std::string_view, 4> by_group{"grpo", "mean_baseline", "rloo",
                                                   "reinforce_plus_plus_baseline"};

/// A numeric parameter, "inf" included; `otherwise` where it is absent or something else.
double number(const nlohmann::json& params, const char* name, double otherwise) {
  if (!params.is_object() || !params.contains(name))
    return otherwise;
  const auto& value = params.at(name);
  if (value == "inf")
    return infinite;
  return value.is_number() ? value.get<double>() : otherwise;
}

std::string text(const nlohmann::json& params, const char* name, const char* otherwise) {
  return params.is_object() && params.contains(name) && params.at(name).is_string()
           ? params.at(name).get<std::string>()
           : otherwise;
}

std::string shown(double x) {
  auto result = nlohmann::json(x).dump();
  return result.ends_with(".0") ? result.substr(0, result.size() - 2) : result;
}

std::string param(const char* name) {
  return std::string("algorithm.loss.params.") + name;
}

/// One run of the checks: the facts, and what was found so far.
class checker {
public:
  explicit checker(const algorithm_facts& facts) : f_(facts), p_(facts.loss_params) {}

  std::vector<finding> run() {
    ratios_of_one();
    staleness();
    clipping();
    caps();
    discrepancy_mask();
    gspo();
    proxies();
    ewma();
    exact();
    divergence();
    advantages();
    sampling();
    return std::move(found_);
  }

private:
  void refuse(std::string id, std::string path, std::string what, std::string set) {
    found_.push_back({severity::refuse, std::move(id), std::move(path), std::move(what),
                      std::move(set)});
  }
  void explain(std::string id, std::string path, std::string what, std::string set) {
    found_.push_back({severity::explain, std::move(id), std::move(path), std::move(what),
                      std::move(set)});
  }

  [[nodiscard]] bool one_update() const { return f_.minibatches <= 1 && f_.epochs <= 1; }
  [[nodiscard]] double weight(const char* name, double otherwise) const {
    return number(p_, name, otherwise);
  }

  void ratios_of_one() {
    auto current_at_start = f_.old_logits == "recompute"
                            || (f_.eta == 0 && among(f_.old_logits, exact_routes));
    if (among(f_.loss, with_prox) && current_at_start && one_update())
      explain("r1_always_one", "trainer.minibatches",
              "the proximal policy (algorithm.old_logits \"" + f_.old_logits
                + "\") is the one that the only update of each batch starts from, so every ratio "
                  "θ/prox is exactly 1 and nothing is ever clipped",
              "2 or more minibatches or epochs give the clip something to do; or take "
              "algorithm.old_logits \"ewma\"");
    if (among(f_.loss, decoupled) && f_.old_logits == "behaviour")
      explain(
        "r2_always_one", "algorithm.old_logits",
        "with \"behaviour\" the proximal policy is the generator's, so every prox/μ is 1: the "
        "behaviour weight and the discrepancy mask of "
          + f_.loss + " do nothing and all staleness is in the clipped ratio",
        "set \"recompute\", or choose the loss ppo_clip, which says the same openly");
  }

  void staleness() {
    if (f_.eta > 0 && !f_.eta_enforced)
      refuse("eta_not_enforced", "rollout.eta",
             "a staleness bound of " + std::to_string(f_.eta)
               + " is set, but nothing enforces it, so older tokens would be trained on unseen",
             "let admission or the buffer enforce it, or remove it");
    if (f_.eta == 0)
      return;
    auto no_weight = among(f_.loss, with_prox_only)
                     || (among(f_.loss, discrepancy)
                         && text(p_, "weight_mode", "ratio") == "none");
    if (no_weight && f_.old_logits != "behaviour" && !among(f_.old_logits, exact_routes)
        && f_.loss != "proxy_interp")
      explain("stale_without_weight", "algorithm.loss.name",
              "tokens up to " + std::to_string(f_.eta) + " versions old are trained on, but "
                + f_.loss + " has no weight prox/μ and its proximal policy (\"" + f_.old_logits
                + "\") is not the one that sampled them: they are used as if they were fresh",
              "choose decoupled_ppo, mis_decoupled, tis_ppo or aipo; or algorithm.old_logits "
              "\"behaviour\"; or rollout.eta 0");
    if (f_.loss == "kl_in_loss")
      explain("no_policy_gradient", "algorithm.loss.name",
              "kl_in_loss alone never looks at rewards",
              "choose a policy loss, and set algorithm.kl.coefficient for the KL");
  }

  void clipping() {
    if (p_.is_object() && p_.contains("dual_clip_c") && weight("dual_clip_c", infinite) <= 1)
      refuse("dual_clip_too_small", param("dual_clip_c"),
             "the dual clip is " + shown(weight("dual_clip_c", 1))
               + ": at 1 or less it cuts off the gradient of negative advantages on policy, where "
                 "the ratio is 1",
             "a value above 1 + eps_high, mostly 3; or leave it out");
    if (!among(f_.loss, ppo_clipping))
      return;
    auto both = weight("eps", 0.2);
    auto low = weight("eps_low", both);
    auto high = weight("eps_high", both);
    if (low == 0 || high == 0)
      refuse("clip_of_zero", param(high == 0 ? "eps_high" : "eps_low"),
             "a clip of width 0 takes the gradient away from every token that has moved at all",
             "0.2 is usual; 3e-4 and 4e-4 for gspo");
    auto limit = weight("log_ratio_clamp", 0);
    if (limit > 0 && limit < std::log(1 + high))
      refuse("clamp_inside_clip", param("log_ratio_clamp"),
             "log-ratios are cut at " + shown(limit) + ", before the clip at log(1 + eps_high) = "
               + shown(std::log(1 + high)) + " is reached, without gradient on either side",
             "a value well above it, e.g. 20");
  }

  void caps() {
    auto open = [&](const char* name, double otherwise) {
      return weight(name, otherwise) == infinite;
    };
    if (f_.loss == "decoupled_ppo" && open("bw_upper", infinite))
      explain("cap_off", param("bw_upper"),
              "the behaviour weight prox/μ has no cap: one token that the generator found very "
              "unlikely can outweigh the rest of the batch",
              "5 is AReaL's; bw_action chooses mask or clamp");
    if ((f_.loss == "aipo" || f_.loss == "aipo_clamped_ratio") && open("rho", 2))
      explain("cap_off", param("rho"), "θ/μ has no cap, so its variance has none either",
              "a value between 2 and 10 (LlamaRL)");
    if (f_.loss == "hilton_decoupled"
        && (open("imp_samp_max", 100) || weight("imp_samp_max", 100) == 0))
      explain("cap_off", param("imp_samp_max"), "θ/μ has no cap, so its variance has none either",
              "100 is the paper's");
    if (f_.loss == "minirl" && open("tis_cap", 5))
      explain("cap_off", param("tis_cap"), "the discrepancy prox/μ has no cap", "5 is the paper's");
    if (!among(f_.loss, discrepancy))
      return;
    auto mode = text(p_, "weight_mode", "ratio");
    if (mode == "clamp" && open("weight_cap", infinite))
      refuse("clamp_without_cap", param("weight_cap"),
             "weight_mode is \"clamp\" but there is no cap, so that nothing is clamped",
             "2 is usual for tokens; or weight_mode \"ratio\"");
    if (mode == "ratio" && open("disc_high", infinite))
      explain(
        "cap_off", param("disc_high"),
        "the weight prox/μ has neither a cap nor a mask above: one token can outweigh the batch",
        "disc_high (1.005 to 5), or weight_mode \"clamp\" with weight_cap");
  }

  void discrepancy_mask() {
    auto check_bounds = [&](const char* low_name, const char* high_name) {
      auto low = weight(low_name, 0);
      auto high = weight(high_name, infinite);
      if (low > 1 || high < 1)
        refuse("mask_excludes_one", param(low > 1 ? low_name : high_name),
               "the allowed range of prox/μ is " + shown(low) + " to "
                 + (high == infinite ? "inf" : shown(high))
                 + ", which leaves out 1: tokens on which trainer and generator agree would be "
                   "masked",
               "a range around 1, e.g. 0.5 to 2");
    };
    if (among(f_.loss, discrepancy))
      check_bounds("disc_low", "disc_high");
    if (f_.loss == "decoupled_ppo" && text(p_, "bw_action", "mask") == "mask")
      check_bounds("bw_lower", "bw_upper");
  }

  void gspo() {
    if (f_.loss != "gspo")
      return;
    for (const auto* name : {"bw_level", "bw_upper", "bw_lower", "disc_level", "disc_low",
                             "disc_high", "weight_level", "weight_cap"})
      if (p_.is_object() && p_.contains(name)) {
        refuse(
          "gspo_token_cap", param(name),
          "gspo clips one ratio per sequence; a cap or mask of single tokens would take part of "
          "a sequence away and leave its ratio as it was",
          "leave it out; or choose tis_ppo with the levels \"geometric\"");
        break;
      }
    auto high = weight("eps_high", weight("eps", 0.2));
    if (high > 0.05)
      explain("gspo_wide_clip", param("eps_high"),
              "the geometric mean of a sequence's ratios moves by thousandths, so a clip of "
                + shown(high) + " practically never acts",
              "eps_low 3e-4 and eps_high 4e-4 are the paper's");
    auto agg = text(p_, "agg", f_.aggregation.c_str());
    if (agg != "seq_mean_token_mean")
      explain("gspo_aggregation", "algorithm.aggregation",
              "with " + agg + " long sequences weigh more; GSPO's objective gives each the same",
              "\"seq_mean_token_mean\"");
  }

  void proxies() {
    if (f_.loss == "proxy_interp") {
      auto w = weight("w_behav", 0.5);
      if (w == 0 || w == 1)
        explain("proxy_at_end", param("w_behav"),
                w == 0 ? "the proxy is θ itself: every θ/prox is 1 and nothing is ever clipped"
                       : "the proxy is μ itself: every prox/μ is 1 and nothing is ever masked",
                "a value between 0 and 1; 0.5 for one version of staleness");
      if (f_.old_logits != "recompute" && !among(f_.old_logits, interpolated_routes))
        explain("proxy_ignores_old_logits", "algorithm.old_logits",
                "proxy_interp makes its own proximal policy; that of \"" + f_.old_logits
                  + "\" is computed for nothing",
                "\"loglinear\"; or the loss mis_decoupled, which uses it");
    }
    if (among(f_.old_logits, interpolated_routes) && (f_.proxy_weight == 0 || f_.proxy_weight == 1))
      explain("proxy_at_end", "algorithm.proxy_weight",
              f_.proxy_weight == 0
                ? "the proxy is θ itself: every θ/prox is 1 and nothing is ever clipped"
                : "the proxy is μ itself, as with algorithm.old_logits \"behaviour\"",
              "a value between 0 and 1, or below 0 for one by each token's version");
    if (among(f_.old_logits, interpolated_routes) && f_.loss == "ppo_clip")
      explain(
        "proxy_widens_clip", "algorithm.old_logits",
        "the clip acts on θ/prox with prox between μ and θ, so on θ/μ it is wider than eps says",
        "mis_decoupled or proxy_interp report the bounds that this amounts to");
  }

  void ewma() {
    if (f_.old_logits != "ewma")
      return;
    if (f_.ewma_reset_below >= 1)
      refuse("ewma_resets_always", "algorithm.ewma.reset_below",
             "the average starts anew after every step that masks a single token, and is then the "
             "current policy",
             "0.8 or 0.9; 0 for never");
    auto masks = among(f_.loss, discrepancy) || f_.loss == "minirl" || f_.loss == "m2po"
                 || (f_.loss == "decoupled_ppo" && text(p_, "bw_action", "mask") == "mask"
                     && (weight("bw_upper", infinite) < infinite || weight("bw_lower", 0) > 0));
    if (f_.ewma_reset_below > 0 && f_.ewma_reset_rule == "mask" && !masks)
      explain("ewma_never_resets", "algorithm.ewma.reset_rule",
              f_.loss
                + " masks nothing, so the kept share is always 1 and the average is never reset",
              "reset_rule \"mask_and_clip\", or a loss with a mask such as mis_decoupled");
    if (!among(f_.loss, with_prox))
      explain("ewma_unused", "algorithm.old_logits",
              f_.loss + " has no proximal policy; the average would be kept for nothing",
              "a loss with one, e.g. mis_decoupled, or \"behaviour\"");
  }

  void exact() {
    if (among(f_.old_logits, exact_routes) && !among(f_.loss, with_prox))
      explain("exact_unused", "algorithm.old_logits",
              f_.loss + " has no proximal policy; older weights would be kept for nothing",
              "a loss with one, e.g. mis_decoupled, or \"behaviour\"");
  }

  void divergence() {
    auto inside = weight("kl_beta", 0);
    auto wants_reference = f_.kl_in_loss > 0 || f_.kl_in_reward > 0 || inside > 0
                           || f_.loss == "kl_in_loss";
    if (wants_reference && !f_.has_reference)
      refuse("kl_without_reference", "algorithm.kl.reference",
             "a KL coefficient is set, but there is no reference policy to stay near",
             "\"initial\", or a coefficient of 0");
    if (inside > 0 && (f_.kl_in_loss > 0 || f_.kl_in_reward > 0))
      explain("kl_twice", param("kl_beta"),
              "the KL is added here and again by algorithm.kl.coefficient", "one of them to 0");
    auto k1_in_loss = (f_.kl_in_loss > 0 && f_.kl_estimator == "k1")
                      || (inside > 0 && text(p_, "kl_estimator", "k3") == "k1");
    if (k1_in_loss)
      explain(
        "k1_in_loss", "algorithm.kl.estimator",
        "the gradient of k1 is that of log θ, whose expectation is 0 on policy: in the loss it "
        "adds noise and no pull towards the reference",
        "\"k3\" or \"k2\"; k1 is right in the reward");
    if (f_.kl_in_reward > 0 && f_.kl_estimator == "k3")
      explain("k3_in_reward", "algorithm.kl.estimator",
              "as a reward, k3's expected gradient is not that of the reverse KL", "\"k1\"");
  }

  void advantages() {
    if (among(f_.advantage, by_group) && f_.group_size == 1)
      refuse("group_of_one", "rollout.group_size",
             "a group of one has no siblings to compare with, so " + f_.advantage
               + " gives every answer the advantage 0 and nothing is learned",
             "2 or more, e.g. 8; or algorithm.advantage.name \"reinforce_plus_plus\"");
    if (f_.advantage == "grpo" && f_.group_size == 2)
      explain("group_of_two", "rollout.group_size",
              "normalised over two answers every advantage is ±0.71 or 0, whatever the rewards",
              "4 or more; or algorithm.advantage.name \"mean_baseline\"");
    if ((f_.advantage == "gae" || f_.advantage == "vtrace") && !f_.has_critic)
      refuse("no_critic", "algorithm.advantage.name",
             f_.advantage + " needs the values of a critic",
             "a critic; or grpo, rloo or reinforce_plus_plus");
    auto weighted = f_.loss == "aipo" || f_.loss == "m2po" || f_.loss == "topr"
                    || f_.loss == "vespo" || f_.loss == "aipo_clamped_ratio";
    if (f_.advantage == "vtrace" && weighted)
      explain("weight_twice", "algorithm.advantage.name",
              "V-trace's advantage carries θ/μ already, and " + f_.loss + " multiplies by it again",
              "gae with " + f_.loss);
    if (f_.loss == "aipo_clamped_ratio")
      explain("not_llamarl", "algorithm.loss.name",
              "above rho this variant has no gradient at all; LlamaRL's AIPO keeps rho·A there",
              "\"aipo\", unless the variant is meant");
  }

  void sampling() {
    if (f_.temperature != f_.train_temperature)
      refuse("temperatures_differ", "sampling.temperature",
             "answers are sampled at " + shown(f_.temperature) + " but scored at "
               + shown(f_.train_temperature)
               + " in training, so that θ/μ is off by more than any staleness",
             "the same temperature on both sides");
    if (f_.temperature == 0)
      refuse(
        "greedy_sampling", "sampling.temperature",
        "at 0 the likeliest token is taken: there is no distribution to take ratios of, and all "
        "answers of a group are the same",
        "1, for the policy itself");
    auto truncated = f_.top_p < 1 || f_.top_k > 0 || f_.min_p > 0;
    if (truncated)
      explain("truncated_sampling",
              f_.top_p < 1   ? "sampling.top_p"
              : f_.top_k > 0 ? "sampling.top_k"
                             : "sampling.min_p",
              "tokens are sampled from a truncated distribution, while training scores them under "
              "the whole one: θ/μ is biased, the more the more is cut off",
              "top_p 1, top_k 0 and min_p 0 in training");
  }

  const algorithm_facts& f_;
  const nlohmann::json& p_;
  std::vector<finding> found_;
};

} // namespace

std::string to_string(const finding& f) {
  return f.path + ": " + f.what + "; instead: " + f.set;
}

std::vector<finding> check(const algorithm_facts& facts) {
  return checker{facts}.run();
}

} // namespace millrace::policy_loss
