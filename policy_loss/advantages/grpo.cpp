#include "policy_loss/advantages/all.hpp"
#include "policy_loss/advantages/host.hpp"

#include <algorithm>
#include <cmath>

namespace millrace::policy_loss::advantages {

namespace {

/// GRPO (2402.03300): the reward normalised by its group, (R − mean)/(std + eps); std with n −
/// ddof. Equal rewards give exactly 0, and so does a group of one, which has nothing to compare
/// with. Named results show what others do there: `advantages_verl` (mean 0, std 1: A = R/(1 +
/// eps)) and `advantages_areal_group` (mean R: A = 0).
class grpo_advantage : public advantage {
public:
  explicit grpo_advantage(param_reader& params)
    : eps_(params.number("eps", 1e-6, non_negative, "added to the group's standard deviation")),
      ddof_(params.integer("ddof", 1, {0, 1}, "1: unbiased standard deviation; 0: population")) {}

  [[nodiscard]] std::string_view name() const override { return "grpo"; }
  [[nodiscard]] advantage_requirements needs() const override {
    return {.groups = true, .smallest_group = 2};
  }

  [[nodiscard]] advantage_outputs compute(const advantage_inputs& in) const override {
    host_inputs host{in};
    auto rewards = host.rewards();
    std::vector<double> result(rewards.size(), 0);
    auto verl = result;
    for (const auto& group : host.groups(rewards)) {
      normalise(group, rewards, result);
      for (auto s : group)
        verl[s] = group.size() == 1 ? rewards[s] / (1 + eps_) : result[s];
    }
    advantage_outputs out;
    out.advantages = host.per_sequence(result);
    out.named = {{"recommended", out.advantages},
                 {"advantages_areal_group", out.advantages},
                 {"advantages_verl", host.per_sequence(verl)}};
    return out;
  }

private:
  void normalise(const std::vector<std::size_t>& group, const std::vector<double>& rewards,
                 std::vector<double>& result) const {
    auto n = static_cast<double>(group.size());
    auto equal = [&](std::size_t s) { return rewards[s] == rewards[group.front()]; };
    if (std::all_of(group.begin(), group.end(), equal))
      return; // no signal: not the rounding of mean and std, but 0
    double sum = 0, squares = 0;
    for (auto s : group)
      sum += rewards[s];
    auto mean = sum / n;
    for (auto s : group)
      squares += (rewards[s] - mean) * (rewards[s] - mean);
    auto deviation = std::sqrt(squares / (n - static_cast<double>(ddof_)));
    for (auto s : group)
      result[s] = (rewards[s] - mean) / (deviation + eps_);
  }

  double eps_;
  std::int64_t ddof_;
};

} // namespace

std::unique_ptr<advantage> grpo(param_reader& params) {
  return std::make_unique<grpo_advantage>(params);
}

} // namespace millrace::policy_loss::advantages
