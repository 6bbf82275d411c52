#include "policy_loss/clip.hpp"
#include "policy_loss/losses/all.hpp"

namespace millrace::policy_loss::losses {

namespace {

/// CISPO (MiniMax-M1, 2506.13585): the importance weight is clipped, not the update, so that every
/// token keeps a gradient:
///   −sg(clip(r1, 1 − eps_low, 1 + eps_high))·A·log θ
class cispo_loss : public token_loss {
public:
  explicit cispo_loss(param_reader& params)
    : token_loss("cispo", params), clip_(clip_options::read(params)) {}

protected:
  [[nodiscard]] requirements method_needs() const override { return {.prox = true}; }

  [[nodiscard]] term evaluate(batch& b) const override {
    term t;
    t.log_r1 = b.log_new_over_prox();
    auto r1 = b.exp(t.log_r1.detach());
    t.weight = r1.clamp(clip_.low(), clip_.high());
    t.value = t.weight.neg() * b.advantages() * b.clean_logp_new();
    t.clipped_high = r1.gt(clip_.high());
    t.clipped_low = r1.lt(clip_.low());
    t.clipped_has_gradient = true;
    return t;
  }

private:
  clip_options clip_;
};

} // namespace

std::unique_ptr<loss> cispo(param_reader& params) {
  return std::make_unique<cispo_loss>(params);
}

} // namespace millrace::policy_loss::losses
