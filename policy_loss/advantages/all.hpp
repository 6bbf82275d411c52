#pragma once

#include "policy_loss/advantage.hpp"

#include <memory>

/// The factories of this library's advantage estimators; each is explained in the file of its name.
namespace millrace::policy_loss::advantages {

std::unique_ptr<advantage> grpo(param_reader& params);
std::unique_ptr<advantage> mean_baseline(param_reader& params);
std::unique_ptr<advantage> rloo(param_reader& params);
std::unique_ptr<advantage> reinforce_plus_plus(param_reader& params);
std::unique_ptr<advantage> reinforce_plus_plus_baseline(param_reader& params);
std::unique_ptr<advantage> gae(param_reader& params);
std::unique_ptr<advantage> vtrace(param_reader& params);

} // namespace millrace::policy_loss::advantages
