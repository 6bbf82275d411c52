#include "policy_loss/advantages/host.hpp"
#include "policy_loss/plugins.hpp"
#include "runtime/plugins/json_parameters.hpp"

#include <cmath>
#include <numeric>

namespace millrace::policy_loss {

namespace {

class plugin_advantage final : public advantage {
public:
  plugin_advantage(const plugins::registered<plugin::advantage_factory>& r, param_reader& params)
    : from_(r.from), estimator_(plugins::make(r, params.rest(), params.where() + ".params")) {}

  [[nodiscard]] std::string_view name() const override { return from_.name; }
  [[nodiscard]] advantage_requirements needs() const override { return {.groups = true}; }

  [[nodiscard]] advantage_outputs compute(const advantage_inputs& in) const override {
    advantages::host_inputs host{in};
    auto rewards = host.rewards();
    std::vector<double> by_sequence(rewards.size(), 0), by_token(host.valid().size(), 0);
    auto per_token = false;
    for (const auto& group : host.groups(rewards)) {
      std::vector<double> own;
      std::vector<std::int32_t> lengths;
      for (auto s : group) {
        own.push_back(rewards[s]);
        lengths.push_back(host.has_tokens() ? valid_tokens(host, s) : 0);
      }
      auto made = plugins::guarded(from_, "estimate() threw",
                                   [&] { return estimator_->estimate(own, lengths); });
      check(made, lengths, host.has_tokens());
      per_token = per_token || made.per_token;
      std::size_t next = 0;
      for (std::size_t i = 0; i < group.size(); ++i) {
        if (!made.per_token)
          by_sequence[group[i]] = made.values[i];
        if (host.has_tokens())
          for (auto t = host.begin(group[i]); t < host.end(group[i]); ++t)
            if (host.valid()[t])
              by_token[t] = made.per_token ? made.values[next++] : made.values[i];
      }
    }
    advantage_outputs out;
    out.advantages = per_token ? host.per_token(by_token) : host.per_sequence(by_sequence);
    return out;
  }

private:
  static std::int32_t valid_tokens(const advantages::host_inputs& host, std::size_t s) {
    std::int32_t n = 0;
    for (auto t = host.begin(s); t < host.end(s); ++t)
      n += host.valid()[t] ? 1 : 0;
    return n;
  }

  void check(const plugin::advantages& made, const std::vector<std::int32_t>& lengths,
             bool has_tokens) const {
    auto expected = made.per_token ? static_cast<std::size_t>(
                                       std::accumulate(lengths.begin(), lengths.end(), 0))
                                   : lengths.size();
    if (made.values.size() != expected || (made.per_token && !has_tokens))
      plugins::blame(from_, "estimate()",
                     "gave " + std::to_string(made.values.size()) + " values, expected "
                       + std::to_string(expected)
                       + (made.per_token ? ", one per token" : ", one per rollout"));
    for (auto a : made.values)
      if (!std::isfinite(a))
        plugins::blame(from_, "estimate()", "gave an advantage that is not finite");
  }

  plugins::origin from_;
  std::unique_ptr<plugin::advantage> estimator_;
};

} // namespace

std::unique_ptr<advantage> make_plugin_advantage(
  const plugins::registered<plugin::advantage_factory>& r, param_reader& params) {
  return std::make_unique<plugin_advantage>(r, params);
}

} // namespace millrace::policy_loss
