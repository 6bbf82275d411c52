#pragma once

#include "rollout/prompt_source.hpp"
#include "runtime/plugins/plugin.hpp"

namespace millrace {

/// Adds a plugin's prompt sources to prompt_sources(): epochs, shuffling and ids are put around
/// them. \throws user_error when a name is taken
void add_plugin_sources(const plugins::loaded_plugin& from);

} // namespace millrace
