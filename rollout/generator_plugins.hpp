#pragma once

#include "rollout/engine.hpp"
#include "rollout/prompt_source.hpp"
#include "runtime/config/settings.hpp"
#include "runtime/plugins/plugin.hpp"
#include "runtime/registry.hpp"

#include <memory>
#include <string>

namespace millrace::generation {

using backend_entry = plugins::registered<plugin::generator_factory>;
using sampler_entry = plugins::registered<plugin::sampler_factory>;

/// Of plugins; empty without.
registry<backend_entry>& backends();
registry<sampler_entry>& samplers();

/// Adds a plugin's generators and samplers to these. \throws user_error when a name is taken
void add_plugin_generators(const plugins::loaded_plugin& from);

/// \throws user_error when the settings name a backend or sampler that there isn't
void check_plugin_names(const generator_settings& s);

/// Makes what the settings name of plugins once, to see whether it takes its parameters; a backend
/// only where the model is known. \throws user_error
void check_plugin_parameters(const generator_settings& s, const model::model_config* config);

/// The engine that the settings ask for: the built-in one or a plugin's generator (generator.backend),
/// with a plugin's sampler and environment where they are named. `prompts` may be empty where there is
/// no environment.
std::unique_ptr<engine> make_engine(const settings& s, engine_options options,
                                    const model::model_config& config,
                                    std::shared_ptr<const model::tokenizer> tokens,
                                    std::shared_ptr<const prompt_source> prompts);

} // namespace millrace::generation
