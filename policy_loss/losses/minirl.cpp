#include "policy_loss/clip.hpp"
#include "policy_loss/losses/all.hpp"

#include <ATen/ops/where.h>

namespace millrace::policy_loss::losses {

namespace {

/// MiniRL (2512.01374): the first-order surrogate of the sequence objective,
///   −M(r1)·sg(min(r2, tis_cap)·r1)·A·log θ
/// where M is PPO's mask by the sign of A: 0 for A ≥ 0, r1 > 1 + eps_high and A < 0, r1 < 1 −
/// eps_low.
class minirl_loss : public token_loss {
public:
  explicit minirl_loss(param_reader& params)
    : token_loss("minirl", params), clip_(clip_options::read(params)) {
    cap_ = params.number("tis_cap", 5, non_negative, "cap of the discrepancy prox/μ");
  }

protected:
  [[nodiscard]] requirements method_needs() const override { return {.prox = true, .behav = true}; }

  [[nodiscard]] term evaluate(batch& b) const override {
    term t;
    t.log_r1 = b.log_new_over_prox();
    auto r1 = b.exp(t.log_r1.detach());
    auto r2 = b.exp(b.log_prox_over_behav());
    apply_ppo_clip(t, r1, b.advantages(), clip_);
    t.keep = t.clipped_high.logical_or(t.clipped_low).logical_not();
    t.weight = r2.clamp_max(cap_) * r1;
    t.value = t.weight.neg() * b.advantages() * b.clean_logp_new();
    return t;
  }

private:
  clip_options clip_;
  double cap_ = 5;
};

} // namespace

std::unique_ptr<loss> minirl(param_reader& params) {
  return std::make_unique<minirl_loss>(params);
}

} // namespace millrace::policy_loss::losses
