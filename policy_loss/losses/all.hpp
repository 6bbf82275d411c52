#pragma once

#include "policy_loss/loss.hpp"

#include <memory>

/// The factories of this library's losses; each is explained in the file of its name.
namespace millrace::policy_loss::losses {

std::unique_ptr<loss> ppo_clip(param_reader& params);
std::unique_ptr<loss> decoupled_ppo(param_reader& params);
std::unique_ptr<loss> hilton_decoupled(param_reader& params);
std::unique_ptr<loss> aipo(param_reader& params);
std::unique_ptr<loss> aipo_clamped_ratio(param_reader& params);
std::unique_ptr<loss> mis_decoupled(param_reader& params);
std::unique_ptr<loss> proxy_interp(param_reader& params);
std::unique_ptr<loss> tis_ppo(param_reader& params);
std::unique_ptr<loss> cispo(param_reader& params);
std::unique_ptr<loss> gspo(param_reader& params);
std::unique_ptr<loss> topr(param_reader& params);
std::unique_ptr<loss> m2po(param_reader& params);
std::unique_ptr<loss> vespo(param_reader& params);
std::unique_ptr<loss> gppo(param_reader& params);
std::unique_ptr<loss> minirl(param_reader& params);
std::unique_ptr<loss> kl_in_loss(param_reader& params);

} // namespace millrace::policy_loss::losses
