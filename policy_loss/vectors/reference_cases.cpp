#include "policy_loss/reference/ewma.hpp"
#include "policy_loss/reference/proxy.hpp"
#include "policy_loss/reference/stitch.hpp"
#include "policy_loss/vectors/cases.hpp"
#include "policy_loss/vectors/values.hpp"
#include "runtime/error.hpp"

#include <ATen/ops/where.h>

#include <algorithm>

namespace millrace::policy_loss::vectors {

void run_ewma(const one_case& c, report& to) {
  c.only_params({"beta", "reset_steps", "reset_at"});
  c.only_inputs({"theta_sequence"});
  c.only_expected({"trace"});
  auto theta = c.input("theta_sequence");
  std::vector<double> resets; // indices into the sequence: one, or a list
  for (const auto* name : {"reset_steps", "reset_at"})
    if (c.params.contains(name))
      resets = to_values(c.params.at(name)).flat;
  ewma average{c.param("beta"), {theta[0]}};
  const auto& trace = c.expected.at("trace");
  if (static_cast<std::int64_t>(trace.size()) != theta.size(0))
    throw user_error("trace and theta_sequence differ in length");
  for (std::int64_t k = 0; k < theta.size(0); ++k) {
    auto reset = std::find(resets.begin(), resets.end(), static_cast<double>(k)) != resets.end();
    if (reset)
      average.reset({theta[k]});
    else if (k > 0)
      average.update({theta[k]});
    auto field = "trace[" + std::to_string(k) + "].";
    for (const auto& [name, want] : trace[static_cast<std::size_t>(k)].items())
      if (name == "W")
        to.compare(field + name, average.total_weight(), want);
      else if (name == "theta_prox")
        to.compare(field + name, average.average()[0], want);
      else
        throw user_error("unknown expected field \"trace." + name + "\"");
  }
}

void run_beta(const one_case& c, report& to) {
  c.only_params({});
  c.only_inputs({"W_stale"});
  c.only_expected({"beta", "center_of_mass"});
  std::vector<double> betas, centers;
  for (auto window : to_values(c.inputs.at("W_stale")).flat) {
    betas.push_back(beta_from_window(window));
    centers.push_back(center_of_mass(betas.back()));
  }
  for (const auto& [name, want] : c.expected.items())
    to.compare(name, name == "beta" ? betas : centers, want);
}

void run_auto_reset(const one_case& c, report& to) {
  c.only_params({"taus"});
  c.only_inputs({"keep_frac_per_step"});
  auto kept = to_values(c.inputs.at("keep_frac_per_step")).flat;
  std::set<std::string> known;
  for (const auto& tau : c.params.at("taus")) {
    ewma_auto_reset rule{to_number(tau)};
    std::vector<double> steps;
    for (std::size_t step = 0; step < kept.size(); ++step)
      if (rule.after_step(kept[step]))
        steps.push_back(static_cast<double>(step));
    auto field = "reset_steps_tau_" + tau.dump();
    known.insert(field);
    if (c.expected.contains(field))
      to.compare(field, steps, c.expected.at(field));
  }
  c.only_expected(known);
}

void run_stitch(const one_case& c, report& to) {
  c.only_params({});
  c.only_inputs({"logp_by_version", "versions", "mask"});
  c.only_expected({"logp_behav", "sum_logp"});
  std::map<std::int64_t, at::Tensor> rows;
  for (const auto& [version, row] : c.inputs.at("logp_by_version").items())
    rows[std::stoll(version)] = to_tensor(row, c.type);
  auto versions = c.input_as("versions", at::kLong);
  auto mask = c.input_as("mask", at::kBool);
  auto result = stitch_by_version(rows, versions);
  if (mask.logical_and(result.found.logical_not()).any().item<bool>())
    throw user_error("a trained token's version has no row");
  for (const auto& [name, want] : c.expected.items())
    if (name == "logp_behav")
      to.compare(name, result.logp, want);
    else
      to.compare(name, at::where(mask, result.logp, 0.0).sum(), want);
}

void run_areal_prox(const one_case& c, report& to) {
  c.only_params({"current_version"});
  c.only_inputs({"logp_behav", "logp_new", "versions", "mask"});
  c.only_expected({"alpha_on_theta", "w_behav", "logp_prox_loglinear", "logp_prox_linear"});
  auto result = areal_prox_approx(c.input("logp_behav"), c.input("logp_new"),
                                  c.input_as("versions", at::kLong),
                                  static_cast<std::int64_t>(c.param("current_version")));
  for (const auto& [name, want] : c.expected.items())
    to.compare(name,
               name == "alpha_on_theta"        ? result.alpha_on_theta
               : name == "w_behav"             ? result.w_behav
               : name == "logp_prox_loglinear" ? result.loglinear
                                               : result.linear,
               want);
}

} // namespace millrace::policy_loss::vectors
