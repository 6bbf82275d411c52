#include "policy_loss/advantages/all.hpp"
#include "policy_loss/advantages/host.hpp"

namespace millrace::policy_loss::advantages {

namespace {

/// Generalised advantage estimation (1506.02438) over valid tokens,
///   δ_t = r_t + γ·V_{t+1} − V_t,  A_t = δ_t + γ·λ·A_{t+1},  returns = A + V
/// with a terminal bootstrap value. Masked tokens (tool output) are stepped over: the next value
/// and the running sum pass through, and what a critic says of them doesn't matter.
class gae_advantage : public advantage {
public:
  explicit gae_advantage(param_reader& params) {
    gamma_ = params.number("gamma", 1, unit, "discount per token");
    lambda_ = params.number("lambda", 0.95, unit, "decay of the sum of errors");
    bootstrap_ = params.number("bootstrap", 0, {}, "value after the last token");
    whiten_ = params.boolean("whiten", false, "normalise advantages over the batch's valid tokens");
    eps_ = params.number("eps", 1e-8, non_negative, "added to the variance when whitening");
  }

  [[nodiscard]] std::string_view name() const override { return "gae"; }
  [[nodiscard]] advantage_requirements needs() const override {
    return {.values = true, .batch_whole = whiten_};
  }

  [[nodiscard]] advantage_outputs compute(const advantage_inputs& in) const override {
    host_inputs host{in};
    auto values = host.tokens(in.values, "values");
    auto rewards = host.token_rewards();
    std::vector<double> advantages(values.size(), 0);
    auto returns = advantages;
    for (std::size_t s = 0; s < host.sequences(); ++s) {
      auto next_value = bootstrap_;
      double running = 0;
      for (auto i = host.end(s); i-- > host.begin(s);) {
        if (!host.valid()[i])
          continue;
        running = rewards[i] + gamma_ * next_value - values[i] + gamma_ * lambda_ * running;
        next_value = values[i];
        advantages[i] = running;
        returns[i] = running + values[i];
      }
    }
    advantage_outputs out;
    out.returns = host.per_token(returns);
    if (whiten_)
      whiten(advantages, host.valid(), eps_);
    out.advantages = host.per_token(advantages);
    return out;
  }

private:
  double gamma_, lambda_, bootstrap_, eps_;
  bool whiten_;
};

} // namespace

std::unique_ptr<advantage> gae(param_reader& params) {
  return std::make_unique<gae_advantage>(params);
}

} // namespace millrace::policy_loss::advantages
