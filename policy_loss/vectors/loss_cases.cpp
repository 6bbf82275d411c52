#include "policy_loss/loss.hpp"
#include "policy_loss/value_loss.hpp"
#include "policy_loss/vectors/cases.hpp"
#include "policy_loss/vectors/values.hpp"
#include "runtime/error.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace millrace::policy_loss::vectors {

at::Tensor one_case::input_as(const std::string& name, at::ScalarType as) const {
  return inputs.contains(name) ? to_tensor(inputs.at(name), as) : at::Tensor{};
}

at::Tensor one_case::input(const std::string& name) const {
  return input_as(name, type);
}

namespace {

void refuse_unknown(const nlohmann::json& object, const std::set<std::string>& known,
                    const char* what) {
  for (const auto& [name, value] : object.items())
    if (!known.contains(name))
      throw user_error(std::string("unknown ") + what + " \"" + name + "\"");
}

} // namespace

void one_case::only_params(const std::set<std::string>& known) const {
  refuse_unknown(params, known, "parameter");
}

void one_case::only_inputs(const std::set<std::string>& known) const {
  refuse_unknown(inputs, known, "input");
}

void one_case::only_expected(const std::set<std::string>& known) const {
  refuse_unknown(expected, known, "expected field");
}

void one_case::same_shape(const std::string& first, const std::set<std::string>& others) const {
  if (!inputs.contains(first))
    throw user_error("input \"" + first + "\" is missing");
  auto shape = to_values(inputs.at(first)).shape;
  if (shape.size() != 2)
    throw user_error("input \"" + first + "\" is not [B][T]");
  for (const auto& name : others)
    if (inputs.contains(name) && to_values(inputs.at(name)).shape != shape)
      throw user_error("input \"" + name + "\" has another shape than \"" + first + "\"");
}

double one_case::param(const std::string& name) const {
  if (!params.contains(name))
    throw user_error("parameter \"" + name + "\" is missing");
  return to_number(params.at(name));
}

double one_case::param(const std::string& name, double otherwise) const {
  return params.contains(name) ? param(name) : otherwise;
}

namespace {

/// Padded tensors as packed ones of S·T tokens with an offset for each row, and back by reshape.
inputs packed(const inputs& padded) {
  auto result = padded;
  auto rows = padded.logp_new.size(0);
  auto columns = padded.logp_new.size(1);
  for (auto* tensor : {&result.logp_new, &result.logp_prox, &result.logp_behav, &result.logp_ref,
                       &result.advantages, &result.mask})
    if (tensor->defined())
      *tensor = tensor->detach().reshape({-1});
  for (std::int64_t s = 0; s <= rows; ++s)
    result.cu_seqlens.push_back(static_cast<std::int32_t>(s * columns));
  return result;
}

/// Spellings met in case files, as the library's own.
nlohmann::json own_spelling(nlohmann::json params) {
  for (const auto* length : {"L", "const", "agg_const"})
    if (params.contains(length)) {
      params["fixed_length"] = params[length];
      params.erase(length);
    }
  if (params.contains("positive_rule") && params["positive_rule"].is_string()) {
    auto rule = params["positive_rule"].get<std::string>();
    rule.erase(std::remove(rule.begin(), rule.end(), ' '), rule.end());
    auto relation = rule.find('>');
    auto subject = rule.substr(0, relation);
    if (subject == "A" || subject == "adv" || subject == "advantages")
      subject = "advantage";
    if (subject == "R" || subject == "rewards")
      subject = "reward";
    params["positive_rule"] =
      subject + (relation == std::string::npos ? ">0" : rule.substr(relation));
  }
  return params;
}

void compare_stat(const outputs& out, const std::string& name, const nlohmann::json& want,
                  report& to) {
  if (want.is_object()) {
    for (const auto& [part, value] : want.items())
      compare_stat(out, name + "." + part, value, to);
    return;
  }
  auto field = "stats." + name;
  if (want.is_array()) {
    if (name == "weight" || name == "behave_weight")
      return to.compare(field, out.weight, want);
    if (name == "keep_mask")
      return to.compare(field, out.keep, want);
    if (name == "active_mask")
      return to.compare(field, out.active, want);
    auto found = out.named.find(name);
    if (found == out.named.end())
      throw user_error("unknown statistic \"" + name + "\"");
    return to.compare(field, found->second, want);
  }
  const auto* found = out.stats.find(name);
  if (found == nullptr)
    throw user_error("unknown statistic \"" + name + "\"");
  to.compare(field, found->value, want);
}

void compare_loss(const one_case& c, const inputs& in, const loss& method, report& to) {
  auto leaf = in;
  leaf.logp_new = in.logp_new.detach().clone().set_requires_grad(true);
  auto out = method.compute(leaf);
  out.loss.backward();
  auto gradient = leaf.logp_new.grad();
  if (c.expected.contains("loss"))
    to.compare("loss", out.loss, c.expected.at("loss"));
  if (c.expected.contains("grad_logp_new"))
    to.compare("grad_logp_new", gradient.defined() ? gradient : at::zeros_like(leaf.logp_new),
               c.expected.at("grad_logp_new"));
  if (c.expected.contains("stats"))
    for (const auto& [name, want] : c.expected.at("stats").items())
      compare_stat(out, name, want, to);
}

} // namespace

void run_loss(const one_case& c, report& to) {
  c.only_expected({"loss", "grad_logp_new", "stats"});
  c.only_inputs({"logp_new", "logp_prox", "logp_behav", "logp_ref", "advantages", "mask", "rewards",
                 "versions", "group_ids"}); // the last two only say where the numbers come from
  auto method = make_loss(c.method, own_spelling(c.params), builtin_losses(), "params");
  inputs in;
  c.same_shape("logp_new", {"logp_prox", "logp_behav", "logp_ref", "mask"});
  in.logp_new = c.input("logp_new");
  in.logp_prox = c.input("logp_prox");
  in.logp_behav = c.input("logp_behav");
  in.logp_ref = c.input("logp_ref");
  in.advantages = c.input("advantages");
  in.rewards = c.input("rewards");
  in.mask = c.input_as("mask", at::kBool);
  to.variant("padded");
  compare_loss(c, in, *method, to);
  to.variant("packed");
  compare_loss(c, packed(in), *method, to);
}

void run_value_loss(const one_case& c, report& to) {
  c.only_expected({"loss", "grad_values", "stats"});
  c.only_inputs({"values", "old_values", "returns", "mask"});
  c.same_shape("values", {"old_values", "returns", "mask"});
  value_inputs in;
  in.values = c.input("values").set_requires_grad(true);
  in.old_values = c.input("old_values");
  in.returns = c.input("returns");
  in.mask = c.input_as("mask", at::kBool);
  auto out = ppo_value_clip(in, c.params, "params");
  out.loss.backward();
  if (c.expected.contains("loss"))
    to.compare("loss", out.loss, c.expected.at("loss"));
  if (c.expected.contains("grad_values"))
    to.compare("grad_values", in.values.grad(), c.expected.at("grad_values"));
  if (c.expected.contains("stats"))
    for (const auto& [name, want] : c.expected.at("stats").items())
      compare_stat(out, name, want, to);
}

} // namespace millrace::policy_loss::vectors
