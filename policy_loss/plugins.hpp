#pragma once

#include "policy_loss/advantage.hpp"
#include "policy_loss/loss.hpp"
#include "runtime/plugins/plugin.hpp"

#include <memory>

namespace millrace::policy_loss {

/// The built-in losses and advantages with those of plugins, which are added while the process
/// starts, before any is looked up.
loss_registry& known_losses();
advantage_registry& known_advantages();

/// Adds a plugin's losses and advantages to these. \throws user_error when a name is taken
void add_plugin(const plugins::loaded_plugin& from);

/// A plugin's loss as one of this library: its equation is the plugin's; aggregation, masks, KL and
/// statistics are those of token_loss, whose parameters it takes beside its own.
std::unique_ptr<loss> make_plugin_loss(const plugins::registered<plugin::loss_factory>& r,
                                       param_reader& params);

std::unique_ptr<advantage> make_plugin_advantage(
  const plugins::registered<plugin::advantage_factory>& r, param_reader& params);

} // namespace millrace::policy_loss
