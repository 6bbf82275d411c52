#pragma once

#include "random_batch.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace millrace::policy_loss::testing {

/// A second, plain implementation of every loss, in loops over doubles, written from the
/// definitions. Where a definition has a stop-gradient, `frozen` stands for logp_new and not
/// `theta`: finite differences in theta at theta = frozen are then the gradient that autograd must
/// give.
double reference_loss(const std::string& name, const nlohmann::json& params,
                      const random_batch& data, const std::vector<double>& theta,
                      const std::vector<double>& frozen);

} // namespace millrace::policy_loss::testing
