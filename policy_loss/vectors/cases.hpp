#pragma once

#include "policy_loss/vectors/report.hpp"

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <set>
#include <string>

namespace millrace::policy_loss::vectors {

/// One worked case and the precision in which its inputs are given to the functions.
struct one_case {
  std::string method;
  nlohmann::json params, inputs, expected;
  at::ScalarType type;

  /// The input as a tensor of `type`; undefined when the case has none of that name.
  [[nodiscard]] at::Tensor input(const std::string& name) const;
  [[nodiscard]] at::Tensor input_as(const std::string& name, at::ScalarType as) const;

  /// @throws millrace::user_error naming a parameter, input or expected field that isn't `known`
  void only_params(const std::set<std::string>& known) const;
  void only_inputs(const std::set<std::string>& known) const;
  void only_expected(const std::set<std::string>& known) const;

  /// @throws millrace::user_error unless the inputs named, where given, have the shape of `first`
  void same_shape(const std::string& first, const std::set<std::string>& others) const;

  /// A parameter; @throws millrace::user_error when the case lacks it and there is no default.
  [[nodiscard]] double param(const std::string& name) const;
  [[nodiscard]] double param(const std::string& name, double otherwise) const;
};

void run_loss(const one_case& c, report& to);
void run_value_loss(const one_case& c, report& to);
void run_advantage(const one_case& c, report& to);
void run_kl_reward(const one_case& c, report& to);
void run_mismatch_stats(const one_case& c, report& to);
void run_sequence_stats(const one_case& c, report& to);
void run_staleness_stats(const one_case& c, report& to);
void run_vcpo(const one_case& c, report& to);
void run_admission(const one_case& c, report& to);
void run_ewma(const one_case& c, report& to);
void run_beta(const one_case& c, report& to);
void run_auto_reset(const one_case& c, report& to);
void run_stitch(const one_case& c, report& to);
void run_areal_prox(const one_case& c, report& to);

} // namespace millrace::policy_loss::vectors
