#pragma once

#include "rollout/reward.hpp"
#include "runtime/plugins/plugin.hpp"

#include <string>

namespace millrace {

/// Adds a plugin's rewards to rewards(). What one throws while it judges is that answer's failure.
/// \throws user_error when a name is taken
void add_plugin_rewards(const plugins::loaded_plugin& from);

/// The same for a plugin that was only described (plugins::describe_isolated): each reward is served
/// by up to `processes` processes, which have `timeout_s` for an answer.
void add_isolated_rewards(const plugins::loaded_plugin& from, const std::string& config,
                          std::int32_t processes, double timeout_s);

} // namespace millrace
