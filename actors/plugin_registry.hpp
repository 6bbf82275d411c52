#pragma once

#include "runtime/config/option_row.hpp"
#include "runtime/config/settings.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plugins/plugin.hpp"
#include "runtime/registry.hpp"

#include <string>
#include <vector>

namespace millrace {

/// The kinds of actors that plugins registered, for `actors` in the configuration.
registry<plugins::registered<plugin::actor_factory>>& actor_kinds();

/// Loads the plugins that the settings name and adds what they register to where built-in things of
/// its kind are looked up. A plugin that is loaded already is left as it is. Also checks that what
/// the settings name of plugins only is there. \throws user_error
void load_plugins(const settings& s);

/// Makes each environment, sampler, generator backend and actor that the settings name once and drops
/// it, to see whether it takes its parameters: what a run would find out only when it starts. A backend
/// only where the model's shape is known. \throws user_error
void check_plugin_parameters(const settings& s, const model::model_config* model);

/// One thing that can be named in a configuration.
struct known_name {
  std::string kind, name, help;
  std::string from;                   ///< the plugin's file; empty: built in
  std::vector<option_row> parameters; ///< of built-in rewards, losses and advantages
};

/// All of them, by kind.
[[nodiscard]] std::vector<known_name> known_names();

/// Opens a plugin only to see what is in it. \throws user_error
[[nodiscard]] plugins::loaded_plugin look_into(const std::string& file);

} // namespace millrace
