#include "policy_loss/advantages/all.hpp"
#include "policy_loss/advantages/host.hpp"

#include <algorithm>

namespace millrace::policy_loss::advantages {

namespace {

/// A reward minus a baseline from its own group, of two kinds.
class group_baseline : public advantage {
public:
  group_baseline(std::string_view name, bool leave_one_out)
    : name_(name), leave_one_out_(leave_one_out) {}

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] advantage_requirements needs() const override {
    return {.groups = true, .smallest_group = 2};
  }

  [[nodiscard]] advantage_outputs compute(const advantage_inputs& in) const override {
    host_inputs host{in};
    auto rewards = host.rewards();
    std::vector<double> result(rewards.size(), 0);
    for (const auto& group : host.groups(rewards)) {
      auto equal = [&](std::size_t s) { return rewards[s] == rewards[group.front()]; };
      if (std::all_of(group.begin(), group.end(), equal))
        continue; // exactly 0, groups of one included
      auto n = static_cast<double>(group.size());
      double sum = 0;
      for (auto s : group)
        sum += rewards[s];
      for (auto s : group)
        result[s] = rewards[s] - (leave_one_out_ ? (sum - rewards[s]) / (n - 1) : sum / n);
    }
    advantage_outputs out;
    out.advantages = host.per_sequence(result);
    return out;
  }

private:
  std::string_view name_;
  bool leave_one_out_;
};

} // namespace

/// R − mean over the group (Dr. GRPO 2503.20783; LlamaRL).
std::unique_ptr<advantage> mean_baseline(param_reader&) {
  return std::make_unique<group_baseline>("mean_baseline", false);
}

/// R − mean over the others of the group (RLOO 2402.14740).
std::unique_ptr<advantage> rloo(param_reader&) {
  return std::make_unique<group_baseline>("rloo", true);
}

} // namespace millrace::policy_loss::advantages
