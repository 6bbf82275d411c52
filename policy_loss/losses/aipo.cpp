#include "policy_loss/losses/all.hpp"
#include "policy_loss/token_loss.hpp"

namespace millrace::policy_loss::losses {

namespace {

/// LlamaRL's asynchronous importance-weighted policy optimisation (2505.24034, section 6):
///   −sg(min(r, rho))·A·log θ,  r = θ/μ
/// Above ρ the gradient stays ρ·A·∇log θ.
class aipo_loss : public token_loss {
public:
  explicit aipo_loss(param_reader& params)
    : token_loss("aipo", params),
      rho_(params.number("rho", 2, non_negative, "cap of the importance weight θ/μ")) {}

protected:
  [[nodiscard]] requirements method_needs() const override { return {.behav = true}; }

  [[nodiscard]] term evaluate(batch& b) const override {
    term t;
    auto r = b.exp(b.log_new_over_behav().detach());
    t.weight = r.clamp_max(rho_);
    t.value = t.weight.neg() * b.advantages() * b.clean_logp_new();
    t.token_means = {{"clip_frac", r.gt(rho_)}};
    return t;
  }

private:
  double rho_;
};

/// A variant seen in the wild (cosmos-rl) under the same name, not LlamaRL's:
///   −min(r, rho)·A  with autograd through the minimum
/// Above ρ the gradient is zero, and the value differs too.
class aipo_clamped_ratio_loss : public token_loss {
public:
  explicit aipo_clamped_ratio_loss(param_reader& params)
    : token_loss("aipo_clamped_ratio", params),
      rho_(params.number("rho", 2, non_negative, "cap of the ratio θ/μ, without gradient above")) {}

protected:
  [[nodiscard]] requirements method_needs() const override { return {.behav = true}; }

  [[nodiscard]] term evaluate(batch& b) const override {
    term t;
    auto r = b.exp(b.log_new_over_behav());
    t.value = r.clamp_max(rho_).neg() * b.advantages();
    auto above = r.detach().gt(rho_);
    t.clipped_high = above.logical_and(b.advantages().ge(0));
    t.clipped_low = above.logical_and(b.advantages().lt(0));
    return t;
  }

private:
  double rho_;
};

} // namespace

std::unique_ptr<loss> aipo(param_reader& params) {
  return std::make_unique<aipo_loss>(params);
}

std::unique_ptr<loss> aipo_clamped_ratio(param_reader& params) {
  return std::make_unique<aipo_clamped_ratio_loss>(params);
}

} // namespace millrace::policy_loss::losses
