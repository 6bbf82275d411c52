#include "policy_loss/advantage.hpp"
#include "policy_loss/vectors/cases.hpp"
#include "policy_loss/vectors/values.hpp"
#include "runtime/error.hpp"

#include <ATen/ops/full.h>

namespace millrace::policy_loss::vectors {

namespace {

advantage_inputs read(const one_case& c) {
  advantage_inputs in;
  in.rewards = c.input("rewards");
  in.group_ids = c.input_as("group_ids", at::kLong);
  in.token_rewards = c.input("token_rewards");
  in.values = c.input("values");
  in.log_ratio = c.input("log_ratio");
  in.mask = c.input_as("mask", at::kBool);
  return in;
}

/// The estimates are listed for valid tokens only, so rows may differ in length.
nlohmann::json flattened(const nlohmann::json& rows) {
  auto result = nlohmann::json::array();
  for (const auto& row : rows)
    for (const auto& entry : row)
      result.push_back(entry);
  return result;
}

at::Tensor at_valid(const at::Tensor& per_token, const at::Tensor& mask) {
  auto flat = per_token.reshape({-1});
  return mask.defined() ? flat.masked_select(mask.reshape({-1})) : flat;
}

} // namespace

void run_advantage(const one_case& c, report& to) {
  c.only_inputs({"rewards", "group_ids", "token_rewards", "values", "log_ratio", "mask"});
  auto in = read(c);
  auto out = make_advantage(c.method, c.params, builtin_advantages(), "params")->compute(in);
  // What GAE leaves at a token that it steps over has no meaning: only valid ones are compared.
  auto only = c.method == "gae" ? in.mask : at::Tensor{};
  for (const auto& [name, want] : c.expected.items()) {
    auto found = out.named.find(name);
    if (found != out.named.end())
      to.compare(name, found->second, want, only);
    else if (name == "advantages")
      to.compare(name, out.advantages, want, only);
    else if (name == "returns" && out.returns.defined())
      to.compare(name, out.returns, want, only);
    else
      throw user_error("unknown expected field \"" + name + "\"");
  }
}

void run_kl_reward(const one_case& c, report& to) {
  c.only_params({"kl_coef", "estimator", "terminal_reward", "log_ratio_clamp"});
  c.only_inputs({"logp_behav", "logp_ref", "mask", "rewards", "token_rewards"});
  c.only_expected({"token_rewards", "k1", "k2", "k3"});
  auto in = read(c);
  auto behav = c.input("logp_behav");
  auto ref = c.input("logp_ref");
  if (c.params.contains("terminal_reward")) {
    const auto& terminal = c.params.at("terminal_reward");
    in.rewards = terminal.is_array() ? to_tensor(terminal, c.type)
                                     : at::full({behav.size(0)}, to_number(terminal), c.type);
  }
  param_reader reader{c.params.contains("estimator")
                        ? nlohmann::json{{"estimator", c.params.at("estimator")}}
                        : nlohmann::json::object(),
                      "params"};
  kl_reward_options options;
  options.coefficient = c.param("kl_coef");
  options.log_ratio_clamp = c.param("log_ratio_clamp", 0);
  options.estimator = read_kl_estimator(reader, "estimator", kl_estimator::k1);
  auto out = kl_reward(behav, ref, in, options);
  for (const auto& [name, want] : c.expected.items())
    if (name == "token_rewards")
      to.compare(name, out.token_rewards, want);
    else
      to.compare(name, at_valid(name == "k1" ? out.k1 : name == "k2" ? out.k2 : out.k3, in.mask),
                 flattened(want));
}

} // namespace millrace::policy_loss::vectors
