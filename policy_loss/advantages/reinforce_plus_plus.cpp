#include "policy_loss/advantages/all.hpp"
#include "policy_loss/advantages/host.hpp"

#include <cmath>

namespace millrace::policy_loss::advantages {

namespace {

/// REINFORCE++ (2501.03262): discounted returns of the token rewards (with any KL penalty in them),
/// whitened over all valid tokens of the batch. Masked tokens within a sequence are stepped over.
class reinforce_plus_plus_advantage : public advantage {
public:
  explicit reinforce_plus_plus_advantage(param_reader& params)
    : gamma_(params.number("gamma", 1, unit, "discount per token")),
      eps_(params.number("eps", 1e-8, non_negative, "added to the variance when whitening")) {}

  [[nodiscard]] std::string_view name() const override { return "reinforce_plus_plus"; }
  [[nodiscard]] advantage_requirements needs() const override { return {.batch_whole = true}; }

  [[nodiscard]] advantage_outputs compute(const advantage_inputs& in) const override {
    host_inputs host{in};
    auto returns = host.token_rewards();
    for (std::size_t s = 0; s < host.sequences(); ++s) {
      double running = 0;
      for (auto i = host.end(s); i-- > host.begin(s);)
        if (host.valid()[i]) {
          running = returns[i] + gamma_ * running;
          returns[i] = running;
        }
    }
    advantage_outputs out;
    out.returns = host.per_token(returns);
    whiten(returns, host.valid(), eps_);
    out.advantages = host.per_token(returns);
    return out;
  }

private:
  double gamma_, eps_;
};

/// REINFORCE++-baseline: the outcome minus its group's mean, given to each token and whitened over
/// the batch's tokens (over sequences where no mask is given). Groups of one get 0 before
/// whitening.
class reinforce_plus_plus_baseline_advantage : public advantage {
public:
  explicit reinforce_plus_plus_baseline_advantage(param_reader& params)
    : eps_(params.number("eps", 1e-8, non_negative, "added to the variance when whitening")) {}

  [[nodiscard]] std::string_view name() const override { return "reinforce_plus_plus_baseline"; }
  [[nodiscard]] advantage_requirements needs() const override {
    return {.groups = true, .batch_whole = true, .smallest_group = 2};
  }

  [[nodiscard]] advantage_outputs compute(const advantage_inputs& in) const override {
    host_inputs host{in};
    auto rewards = host.rewards();
    std::vector<double> centred(rewards.size(), 0);
    std::vector<char> finite(rewards.size(), 0);
    for (const auto& group : host.groups(rewards)) {
      double sum = 0;
      for (auto s : group)
        sum += rewards[s];
      for (auto s : group) {
        centred[s] = group.size() == 1 ? 0 : rewards[s] - sum / static_cast<double>(group.size());
        finite[s] = 1;
      }
    }
    advantage_outputs out;
    if (!host.has_tokens()) {
      whiten(centred, finite, eps_);
      out.advantages = host.per_sequence(centred);
      return out;
    }
    std::vector<double> spread(host.valid().size(), 0);
    auto counted = host.valid();
    for (std::size_t s = 0; s < centred.size(); ++s)
      for (auto i = host.begin(s); i < host.end(s); ++i) {
        spread[i] = host.valid()[i] ? centred[s] : 0;
        counted[i] = host.valid()[i] && finite[s];
      }
    whiten(spread, counted, eps_);
    out.advantages = host.per_token(spread);
    return out;
  }

private:
  double eps_;
};

} // namespace

std::unique_ptr<advantage> reinforce_plus_plus(param_reader& params) {
  return std::make_unique<reinforce_plus_plus_advantage>(params);
}

std::unique_ptr<advantage> reinforce_plus_plus_baseline(param_reader& params) {
  return std::make_unique<reinforce_plus_plus_baseline_advantage>(params);
}

} // namespace millrace::policy_loss::advantages
