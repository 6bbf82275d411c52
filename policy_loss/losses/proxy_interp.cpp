#include "policy_loss/clip.hpp"
#include "policy_loss/importance.hpp"
#include "policy_loss/losses/all.hpp"
#include "policy_loss/reference/proxy.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>

namespace millrace::policy_loss::losses {

namespace {

/// The decoupled objective with an interpolated prox, for when the old log-probs are lost
/// (2605.12070, appendix A; A-3PO 2512.06547): prox = interpolation between μ (weight w_behav) and
/// the current θ, detached, and then as `mis_decoupled`. The gradient is −r1·A, not −w·r1·A.
/// Statistics `effective_bounds_total_ratio.*` are the bounds that clip and mask put on r = θ/μ.
class proxy_interp_loss : public token_loss {
public:
  explicit proxy_interp_loss(param_reader& params)
    : token_loss("proxy_interp", params),
      clip_(clip_options::read_with_dual(params)),
      importance_(importance_options::read(params)) {
    how_ = static_cast<interpolation>(
      params.choice("interp", {"loglinear", "arithmetic"}, 0,
                    "log prox = w·log μ + (1-w)·log θ, or of the probabilities"));
    w_behav_ = params.number("w_behav", 0.5, unit, "weight on the behaviour policy");
  }

protected:
  [[nodiscard]] requirements method_needs() const override {
    return {.behav = true, .sequences_whole = importance_.looks_at_sequences()};
  }

  [[nodiscard]] term evaluate(batch& b) const override {
    term t;
    // Formed for its own sake too: a token that is not finite here is so in either factor.
    auto log_r = b.log_new_over_behav().detach();
    auto behav = b.logp_behav();
    auto prox = interpolate(how_, w_behav_, behav, b.logp_new());
    t.log_r1 = b.log_ratio(b.logp_new(), prox);
    auto log_r2 = b.log_ratio(prox, behav);
    auto r1 = b.exp(t.log_r1);
    apply_ppo_clip(t, r1, b.advantages(), clip_);
    correct_discrepancy(t, b, log_r2, importance_);
    t.named_tokens = {
      {"logp_prox", prox}, {"r_stale", r1}, {"r_disc", b.exp(log_r2)}, {"r_total", b.exp(log_r)}};
    auto bounds = bounds_on_total_ratio(how_, w_behav_, clip_.eps_low, clip_.eps_high,
                                        importance_.disc_low, importance_.disc_high);
    auto constant = [&](const char* name, double value) {
      auto scalar = [&](double x) { return at::scalar_tensor(x, r1.options()); };
      t.scalars.push_back({std::string("effective_bounds_total_ratio.") + name, scalar(value),
                           scalar(1), merge_rule::max});
    };
    constant("ppo_upper", bounds.ppo_upper);
    constant("ppo_lower", bounds.ppo_lower);
    constant("mask_upper", bounds.mask_upper);
    constant("mask_lower", bounds.mask_lower);
    return t;
  }

private:
  clip_options clip_;
  importance_options importance_;
  interpolation how_ = interpolation::loglinear;
  double w_behav_ = 0.5;
};

} // namespace

std::unique_ptr<loss> proxy_interp(param_reader& params) {
  return std::make_unique<proxy_interp_loss>(params);
}

} // namespace millrace::policy_loss::losses
