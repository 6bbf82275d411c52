#include "policy_loss/losses/all.hpp"
#include "policy_loss/token_loss.hpp"

namespace millrace::policy_loss::losses {

namespace {

/// Only the KL term: beta·k(log θ − log ref), with gradient through the estimator. (In expectation
/// k1 gives no gradient signal, k2 that of the reverse KL, k3 one like the forward KL's.) To add a
/// KL to another loss use its kl_beta.
class kl_only_loss : public token_loss {
public:
  explicit kl_only_loss(param_reader& params)
    : token_loss("kl_in_loss", params),
      estimator_(read_kl_estimator(params, "estimator", kl_estimator::k3)),
      beta_(params.number("beta", 0.1, non_negative, "coefficient of the KL")) {}

protected:
  [[nodiscard]] requirements method_needs() const override { return {.ref = true}; }

  [[nodiscard]] term evaluate(batch& b) const override {
    term t;
    t.value = beta_ * kl_estimate(estimator_, b.log_new_over_ref());
    return t;
  }

private:
  kl_estimator estimator_;
  double beta_;
};

} // namespace

std::unique_ptr<loss> kl_in_loss(param_reader& params) {
  return std::make_unique<kl_only_loss>(params);
}

} // namespace millrace::policy_loss::losses
