#include "policy_loss/diagnostics.hpp"
#include "policy_loss/vectors/cases.hpp"
#include "policy_loss/vectors/values.hpp"
#include "runtime/error.hpp"

#include <algorithm>
#include <map>

namespace millrace::policy_loss::vectors {

namespace {

/// 1.1 as in field names: "1p1".
std::string suffix(const one_case& c) {
  if (!c.params.contains("mask_c"))
    return "";
  auto text = c.params.at("mask_c").dump();
  std::replace(text.begin(), text.end(), '.', 'p');
  return "_" + text;
}

/// What verl and others call a sequence statistic.
const std::map<std::string, std::string> other_names{
  {"ess_frac", "seq_ess_frac"},        {"ess_frac_seq", "seq_ess_frac"},
  {"ess_seq", "seq_ess_frac"},         {"ess_frac_geo", "geo_ess_frac"},
  {"training_ppl", "train_ppl"},       {"rollout_ppl", "infer_ppl"},
  {"ppl_train", "train_ppl"},          {"ppl_infer", "infer_ppl"},
  {"log_ppl_diff", "log_ppl_diff_mean"}, {"chi2_sequence", "chi2_seq"},
  {"mask_frac_sequence", "mask_frac_seq"}, {"mask_frac_geometric", "mask_frac_geo"},
  {"seq_weight", "seq_ratio"},         {"seq_weights", "seq_ratio"},
  {"seq_product", "seq_ratio"},        {"geo_mean", "geo_ratio"},
  {"geo_mean_ratio", "geo_ratio"},     {"seq_geo_mean", "geo_ratio"},
};

std::string canonical(const std::string& name) {
  auto found = other_names.find(name);
  return found == other_names.end() ? name : found->second;
}

/// Compares the scalar `name`, which may carry the mask's bound at its end.
void compare_scalar(const one_case& c, const statistics& stats, const std::string& name,
                    const nlohmann::json& want, report& to) {
  auto bare = name;
  auto end = suffix(c);
  if (!end.empty() && bare.starts_with("mask_frac") && bare.ends_with(end))
    bare.resize(bare.size() - end.size());
  const auto* found = stats.find(bare);
  if (found == nullptr)
    found = stats.find(canonical(bare));
  if (found == nullptr)
    throw user_error("unknown expected field \"" + name + "\"");
  to.compare(name, found->value, want);
}

std::vector<double> as_doubles(const std::vector<std::int64_t>& from) {
  return {from.begin(), from.end()};
}

} // namespace

void run_mismatch_stats(const one_case& c, report& to) {
  c.only_params({"C", "mask_c"});
  c.only_inputs({"logp_train", "logp_infer", "mask"});
  auto stats = mismatch_stats(c.input("logp_train"), c.input("logp_infer"),
                              c.input_as("mask", at::kBool), c.param("C", 2),
                              c.param("mask_c", 2));
  for (const auto& [name, want] : c.expected.items())
    compare_scalar(c, stats, name, want, to);
}

void run_sequence_stats(const one_case& c, report& to) {
  c.only_params({"C", "mask_c"});
  c.only_inputs({"logp_train", "logp_infer", "mask"});
  auto result = sequence_stats(c.input("logp_train"), c.input("logp_infer"),
                               c.input_as("mask", at::kBool), {}, c.param("C", 2),
                               c.param("mask_c", 2));
  const std::map<std::string, at::Tensor> per_sequence{{"seq_log_ratio", result.seq_log_ratio},
                                                       {"seq_ratio", result.seq_ratio},
                                                       {"geo_ratio", result.geo_ratio},
                                                       {"lengths", result.lengths}};
  for (const auto& [name, want] : c.expected.items()) {
    auto found = per_sequence.find(canonical(name));
    if (want.is_array() && found != per_sequence.end())
      to.compare(name, found->second, want);
    else
      compare_scalar(c, result.stats, name, want, to);
  }
}

void run_staleness_stats(const one_case& c, report& to) {
  c.only_params({"current_version"});
  c.only_inputs({"versions", "mask"});
  auto result = staleness_stats(c.input_as("versions", at::kLong), c.input_as("mask", at::kBool),
                                {}, static_cast<std::int64_t>(c.param("current_version")));
  for (const auto& [name, want] : c.expected.items()) {
    if (name == "histogram_token") {
      nlohmann::json histogram = nlohmann::json::object();
      for (const auto& [staleness, tokens] : result.histogram)
        histogram[std::to_string(staleness)] = tokens;
      if (histogram != want)
        to.fail(name, histogram.dump(), want.dump());
    } else if (name == "mean") {
      to.compare(name, result.mean, want);
    } else if (name == "max") {
      to.compare(name, static_cast<double>(result.max), want);
    } else if (name == "min") {
      to.compare(name, static_cast<double>(result.min), want);
    } else if (name == "per_seq_head") {
      to.compare(name, as_doubles(result.head), want);
    } else if (name == "per_seq_tail") {
      to.compare(name, as_doubles(result.tail), want);
    } else if (name == "per_seq_span") {
      to.compare(name, as_doubles(result.span), want);
    } else if (name == "mixed_version_seq_frac") {
      to.compare(name, result.mixed_version_seq_frac, want);
    } else {
      throw user_error("unknown expected field \"" + name + "\"");
    }
  }
}

void run_vcpo(const one_case& c, report& to) {
  c.only_params({"ess_ref"});
  c.only_inputs({"seq_weights_unclipped"});
  c.only_expected({"ess_frac", "lr_scale"});
  auto weights = to_values(c.inputs.at("seq_weights_unclipped")).flat;
  auto ess = ess_fraction(weights);
  for (const auto& [name, want] : c.expected.items())
    to.compare(name, name == "ess_frac" ? ess : vcpo_lr_scale(ess, c.param("ess_ref", 1)), want);
}

void run_admission(const one_case& c, report& to) {
  c.only_params({"B", "eta", "version"});
  c.only_inputs({"N_r"});
  c.only_expected({"admit"});
  auto integer = [&](const char* name) { return static_cast<std::int64_t>(c.param(name)); };
  std::vector<double> admit;
  for (auto n : to_values(c.inputs.at("N_r")).flat)
    admit.push_back(areal_admission(static_cast<std::int64_t>(n), integer("B"), integer("eta"),
                                    integer("version"))
                      ? 1
                      : 0);
  to.compare("admit", admit, c.expected.at("admit"));
}

} // namespace millrace::policy_loss::vectors
