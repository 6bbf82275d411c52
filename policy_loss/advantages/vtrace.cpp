#include "policy_loss/advantages/all.hpp"
#include "policy_loss/advantages/host.hpp"

#include <algorithm>
#include <cmath>

namespace millrace::policy_loss::advantages {

namespace {

/// V-trace (IMPALA 1802.01561, eq. 1) over valid tokens, with the ratio θ/μ truncated twice,
/// ρ_t = min(rho_bar, θ/μ), c_t = λ·min(c_bar, θ/μ):
///   v_t = V_t + ρ_t·(r_t + γ·V_{t+1} − V_t) + γ·c_t·(v_{t+1} − V_{t+1})
///   pg_advantage_t = ρ_t·(r_t + γ·v_{t+1} − V_t)
/// which is for a loss −pg_advantage·log θ: the importance weight is in it already.
class vtrace_advantage : public advantage {
public:
  explicit vtrace_advantage(param_reader& params) {
    gamma_ = params.number("gamma", 1, unit, "discount per token");
    rho_bar_ = params.number("rho_bar", 1, non_negative, "truncation of θ/μ on the errors");
    c_bar_ = params.number("c_bar", 1, non_negative, "truncation of θ/μ on what is passed back");
    lambda_ = params.number("lambda", 1, unit, "decay of what is passed back");
    bootstrap_ = params.number("bootstrap", 0, {}, "value after the last token");
  }

  [[nodiscard]] std::string_view name() const override { return "vtrace"; }
  [[nodiscard]] advantage_requirements needs() const override {
    return {.values = true, .log_ratio = true};
  }

  [[nodiscard]] advantage_outputs compute(const advantage_inputs& in) const override {
    host_inputs host{in};
    auto values = host.tokens(in.values, "values");
    auto log_ratio = host.tokens(in.log_ratio, "log_ratio");
    auto rewards = host.token_rewards();
    std::vector<double> targets(values.size(), 0);
    auto advantages = targets;
    for (std::size_t s = 0; s < host.sequences(); ++s) {
      auto next_value = bootstrap_;
      auto next_target = bootstrap_;
      for (auto i = host.end(s); i-- > host.begin(s);) {
        if (!host.valid()[i])
          continue;
        auto ratio = std::exp(std::min(log_ratio[i], 300.0));
        auto rho = std::min(rho_bar_, ratio);
        auto c = lambda_ * std::min(c_bar_, ratio);
        targets[i] = values[i] + rho * (rewards[i] + gamma_ * next_value - values[i])
                     + gamma_ * c * (next_target - next_value);
        advantages[i] = rho * (rewards[i] + gamma_ * next_target - values[i]);
        next_value = values[i];
        next_target = targets[i];
      }
    }
    advantage_outputs out;
    out.advantages = host.per_token(advantages);
    out.returns = host.per_token(targets);
    out.named = {{"vs", out.returns}, {"pg_advantage", out.advantages}};
    return out;
  }

private:
  double gamma_, rho_bar_, c_bar_, lambda_, bootstrap_;
};

} // namespace

std::unique_ptr<advantage> vtrace(param_reader& params) {
  return std::make_unique<vtrace_advantage>(params);
}

} // namespace millrace::policy_loss::advantages
