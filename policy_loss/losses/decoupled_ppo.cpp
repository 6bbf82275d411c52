#include "policy_loss/clip.hpp"
#include "policy_loss/importance.hpp"
#include "policy_loss/losses/all.hpp"

namespace millrace::policy_loss::losses {

namespace {

enum class cap_action : std::uint8_t { mask, clamp };

/// AReaL's decoupled objective (2505.24298, section 5.2), after Hilton et al. (2110.00641):
///   sg(w)·ppo_clip(r1),  w = r2 = prox/μ
/// The behaviour weight is taken per token, or as the geometric mean of the sequence given to each
/// of its tokens (bw_level); outside [bw_lower, bw_upper] the token is masked or w clamped.
class decoupled_ppo_loss : public token_loss {
public:
  explicit decoupled_ppo_loss(param_reader& params)
    : token_loss("decoupled_ppo", params), clip_(clip_options::read_with_dual(params)) {
    auto by_sequence = params.choice("bw_level", {"token", "sequence"}, 0,
                                     "level of the behaviour weight; sequence: the geometric mean");
    level_ = by_sequence == 1 ? ratio_level::geometric : ratio_level::token;
    action_ = static_cast<cap_action>(params.choice("bw_action", {"mask", "clamp"}, 0,
                                                    "what happens outside [bw_lower, bw_upper]"));
    upper_ = params.number("bw_upper", infinity, non_negative, "largest behaviour weight");
    lower_ = params.number("bw_lower", 0, non_negative, "smallest behaviour weight");
    if (lower_ > upper_)
      params.refuse("bw_lower", "at most bw_upper");
  }

protected:
  [[nodiscard]] requirements method_needs() const override {
    return {.prox = true, .behav = true, .sequences_whole = level_ != ratio_level::token};
  }

  [[nodiscard]] term evaluate(batch& b) const override {
    term t;
    t.log_r1 = b.log_new_over_prox();
    auto log_r2 = b.log_prox_over_behav();
    apply_ppo_clip(t, b.exp(t.log_r1), b.advantages(), clip_);
    t.weight = b.exp(b.at_level(level_, log_r2));
    if (action_ == cap_action::clamp)
      t.weight = t.weight.clamp(lower_, upper_);
    else
      t.keep = t.weight.ge(lower_).logical_and(t.weight.le(upper_));
    t.value = t.weight * t.value;
    return t;
  }

private:
  clip_options clip_;
  ratio_level level_ = ratio_level::token;
  cap_action action_ = cap_action::mask;
  double lower_ = 0;
  double upper_ = infinity;
};

} // namespace

std::unique_ptr<loss> decoupled_ppo(param_reader& params) {
  return std::make_unique<decoupled_ppo_loss>(params);
}

} // namespace millrace::policy_loss::losses
