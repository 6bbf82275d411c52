#include "policy_loss/clip.hpp"
#include "policy_loss/losses/all.hpp"

#include <ATen/ops/where.h>

#include <cmath>

namespace millrace::policy_loss::losses {

namespace {

double log_or_lowest(double bound) {
  return bound > 0 ? std::log(bound) : -infinity;
}

/// The decoupled objective of Batch size-invariance (Hilton, Cobbe, Schulman 2021, 2110.00641) as
/// published with it: the ratio to μ is capped in log space,
///   lp' = max(log μ, sg(log θ) − log cap),
///   max(−A·exp(log θ − lp'), −A·exp(log prox − lp' + clip(log r1, log(1 − eps), log(1 + eps))))
/// A capped token keeps the gradient cap·A·∇log θ.
class hilton_decoupled_loss : public token_loss {
public:
  explicit hilton_decoupled_loss(param_reader& params)
    : token_loss("hilton_decoupled", params), clip_(clip_options::read(params)) {
    cap_ = params.number("imp_samp_max", 100, non_negative, "cap of θ/μ; 0: none");
  }

protected:
  [[nodiscard]] requirements method_needs() const override { return {.prox = true, .behav = true}; }

  [[nodiscard]] term evaluate(batch& b) const override {
    term t;
    t.log_r1 = b.log_new_over_prox();
    auto log_r = b.log_new_over_behav();
    auto log_cap = cap_ > 0 ? std::log(cap_) : infinity;
    auto low = log_or_lowest(clip_.low());
    auto high = std::log(clip_.high());

    // log θ − lp' = min(log r, log cap), with the gradient of log θ on both sides of the cap.
    auto value = log_r.detach().clamp_max(log_cap);
    auto log_ratio = value + (log_r - log_r.detach());
    auto log_r1 = t.log_r1.detach();
    auto negative = b.advantages().lt(0);
    t.clipped_high = log_r1.gt(high).logical_and(negative.logical_not());
    t.clipped_low = log_r1.lt(low).logical_and(negative);
    auto chosen = at::where(t.clipped_high, value - log_r1 + high, log_ratio);
    if (std::isfinite(low))
      chosen = at::where(t.clipped_low, value - log_r1 + low, chosen);
    t.value = b.advantages().neg() * b.exp(chosen);
    t.token_means = {{"clip_frac_unsigned", log_r1.gt(high).logical_or(log_r1.lt(low))},
                     {"imp_samp_clip_frac", log_r.detach().gt(log_cap)}};
    return t;
  }

private:
  clip_options clip_;
  double cap_ = 100;
};

} // namespace

std::unique_ptr<loss> hilton_decoupled(param_reader& params) {
  return std::make_unique<hilton_decoupled_loss>(params);
}

} // namespace millrace::policy_loss::losses
