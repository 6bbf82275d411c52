#include "policy_loss/importance.hpp"
#include "policy_loss/losses/all.hpp"

#include <ATen/ops/where.h>

namespace millrace::policy_loss::losses {

namespace {

enum class positive_rule : std::uint8_t { advantage, advantage_or_zero, reward, reward_or_zero };

/// Tapered off-policy REINFORCE (TOPR 2503.14286, eq. 8): positive samples are learned from as in
/// supervised learning, negative ones by a truncated importance weight,
///   positive: −A·log θ;  else −sg(clip(θ/μ, 0, 1))·A·log θ
/// The ratio is per token, or of the whole sequence as in the paper (level).
class topr_loss : public token_loss {
public:
  explicit topr_loss(param_reader& params) : token_loss("topr", params) {
    level_ = read_level(params, "level", "level of the ratio θ/μ");
    rule_ = static_cast<positive_rule>(
      params.choice("positive_rule", {"advantage>0", "advantage>=0", "reward>0", "reward>=0"}, 0,
                    "which samples count as positive"));
  }

protected:
  [[nodiscard]] requirements method_needs() const override {
    return {.behav = true, .rewards = by_reward(), .sequences_whole = level_ != ratio_level::token};
  }

  [[nodiscard]] term evaluate(batch& b) const override {
    term t;
    auto log_r = b.log_new_over_behav().detach();
    auto log_theta = b.clean_logp_new();
    auto tapered = b.exp(b.at_level(level_, log_r)).clamp(0, 1);
    auto sign_of = by_reward() ? b.rewards() : b.advantages();
    auto strict = rule_ == positive_rule::advantage || rule_ == positive_rule::reward;
    t.weight = at::where(strict ? sign_of.gt(0) : sign_of.ge(0), 1.0, tapered);
    t.value = t.weight.neg() * b.advantages() * log_theta;
    return t;
  }

private:
  [[nodiscard]] bool by_reward() const {
    return rule_ == positive_rule::reward || rule_ == positive_rule::reward_or_zero;
  }

  ratio_level level_ = ratio_level::token;
  positive_rule rule_ = positive_rule::advantage;
};

} // namespace

std::unique_ptr<loss> topr(param_reader& params) {
  return std::make_unique<topr_loss>(params);
}

} // namespace millrace::policy_loss::losses
