#include "policy_loss/losses/all.hpp"
#include "policy_loss/token_loss.hpp"

#include <ATen/ops/where.h>

namespace millrace::policy_loss::losses {

namespace {

/// VESPO: a smooth kernel on the sequence weight W = Π_t θ/μ instead of a cap,
///   −sg(φ)·A·log θ,  φ = exp(λ + k·log W − λ·W)
/// with k and λ by the sign of A. φ(1) = 1; it falls off on both sides.
class vespo_loss : public token_loss {
public:
  explicit vespo_loss(param_reader& params) : token_loss("vespo", params) {
    k_pos_ = params.number("k_pos", 2, non_negative, "power of W for A >= 0");
    lambda_pos_ = params.number("lambda_pos", 3, non_negative, "decay in W for A >= 0");
    k_neg_ = params.number("k_neg", 3, non_negative, "power of W for A < 0");
    lambda_neg_ = params.number("lambda_neg", 2, non_negative, "decay in W for A < 0");
  }

protected:
  [[nodiscard]] requirements method_needs() const override {
    return {.behav = true, .sequences_whole = true};
  }

  [[nodiscard]] term evaluate(batch& b) const override {
    term t;
    auto log_r = b.log_new_over_behav().detach();
    auto log_theta = b.clean_logp_new();
    auto log_w = b.at_level(ratio_level::sequence, log_r);
    auto w = b.exp(log_w);
    auto phi = [&](double k, double lambda) { return b.exp(lambda + k * log_w - lambda * w); };
    t.weight = at::where(b.advantages().ge(0), phi(k_pos_, lambda_pos_), phi(k_neg_, lambda_neg_));
    t.value = t.weight.neg() * b.advantages() * log_theta;
    return t;
  }

private:
  double k_pos_, lambda_pos_, k_neg_, lambda_neg_;
};

} // namespace

std::unique_ptr<loss> vespo(param_reader& params) {
  return std::make_unique<vespo_loss>(params);
}

} // namespace millrace::policy_loss::losses
