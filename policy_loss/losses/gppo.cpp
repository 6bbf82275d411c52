#include "policy_loss/clip.hpp"
#include "policy_loss/losses/all.hpp"

#include <ATen/ops/where.h>

namespace millrace::policy_loss::losses {

namespace {

/// GPPO (Klear-Reasoner, 2508.07629): the value of PPO's clip, but a clipped token keeps a bounded
/// gradient, (1 ± eps)·A·∇log θ: in its branch r1 is multiplied by (1 ± eps)/sg(r1).
class gppo_loss : public token_loss {
public:
  explicit gppo_loss(param_reader& params)
    : token_loss("gppo", params), clip_(clip_options::read(params)) {}

protected:
  [[nodiscard]] requirements method_needs() const override { return {.prox = true}; }

  [[nodiscard]] term evaluate(batch& b) const override {
    term t;
    t.log_r1 = b.log_new_over_prox();
    auto r1 = b.exp(t.log_r1);
    apply_ppo_clip(t, r1, b.advantages(), clip_);
    // r1/sg(r1) as e^(x − sg(x)): exactly 1, and defined where r1 underflows.
    auto one_with_gradient = (t.log_r1 - t.log_r1.detach()).exp();
    auto high = t.clipped_high;
    auto bound = at::where(high, clip_.high(), at::where(t.clipped_low, clip_.low(), r1.detach()));
    auto clipped = high.logical_or(t.clipped_low);
    t.value = b.advantages().neg() * at::where(clipped, bound * one_with_gradient, r1);
    t.clipped_has_gradient = true;
    return t;
  }

private:
  clip_options clip_;
};

} // namespace

std::unique_ptr<loss> gppo(param_reader& params) {
  return std::make_unique<gppo_loss>(params);
}

} // namespace millrace::policy_loss::losses
