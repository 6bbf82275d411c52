#include "policy_loss/clip.hpp"
#include "policy_loss/importance.hpp"
#include "policy_loss/losses/all.hpp"

namespace millrace::policy_loss::losses {

namespace {

/// A PPO clip on the staleness r1 = θ/prox, with mask and weight from the train–infer discrepancy
/// r2 = prox/μ, under two separate thresholds:
///   M·sg(weight)·ppo_clip(r1),  M = 1{disc_low ≤ r2 ≤ disc_high}
/// One class under two names: `mis_decoupled` is Missing Old Logits' decoupled objective
/// (2605.12070, sections 3 and 4); `tis_ppo` covers truncated and masked importance sampling (TIS,
/// IcePop, MIS, geometric and sequence variants) by the levels.
class discrepancy_corrected_loss : public token_loss {
public:
  discrepancy_corrected_loss(std::string name, param_reader& params)
    : token_loss(std::move(name), params),
      clip_(clip_options::read_with_dual(params)),
      importance_(importance_options::read(params)) {}

protected:
  [[nodiscard]] requirements method_needs() const override {
    return {.prox = true, .behav = true, .sequences_whole = importance_.looks_at_sequences()};
  }

  [[nodiscard]] term evaluate(batch& b) const override {
    term t;
    t.log_r1 = b.log_new_over_prox();
    auto log_r2 = b.log_prox_over_behav();
    apply_ppo_clip(t, b.exp(t.log_r1), b.advantages(), clip_);
    correct_discrepancy(t, b, log_r2, importance_);
    return t;
  }

private:
  clip_options clip_;
  importance_options importance_;
};

} // namespace

std::unique_ptr<loss> mis_decoupled(param_reader& params) {
  return std::make_unique<discrepancy_corrected_loss>("mis_decoupled", params);
}

std::unique_ptr<loss> tis_ppo(param_reader& params) {
  return std::make_unique<discrepancy_corrected_loss>("tis_ppo", params);
}

} // namespace millrace::policy_loss::losses
