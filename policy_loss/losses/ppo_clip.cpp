#include "policy_loss/clip.hpp"
#include "policy_loss/losses/all.hpp"

namespace millrace::policy_loss::losses {

namespace {

/// PPO's clipped surrogate (Schulman et al. 2017, 1707.06347), r1 = θ/prox:
///   max(−A·r1, −A·clip(r1, 1 − eps_low, 1 + eps_high))
/// with clip-higher (DAPO 2503.14476) by eps_high > eps_low, and dual clip (1912.09729) by
/// dual_clip_c: for A < 0 at most −c·A. With kl_beta it is GRPO's objective (2402.03300).
class ppo_clip_loss : public token_loss {
public:
  explicit ppo_clip_loss(param_reader& params)
    : token_loss("ppo_clip", params), clip_(clip_options::read_with_dual(params)) {}

protected:
  [[nodiscard]] requirements method_needs() const override { return {.prox = true}; }

  [[nodiscard]] term evaluate(batch& b) const override {
    term t;
    t.log_r1 = b.log_new_over_prox();
    apply_ppo_clip(t, b.exp(t.log_r1), b.advantages(), clip_);
    return t;
  }

private:
  clip_options clip_;
};

} // namespace

std::unique_ptr<loss> ppo_clip(param_reader& params) {
  return std::make_unique<ppo_clip_loss>(params);
}

} // namespace millrace::policy_loss::losses
