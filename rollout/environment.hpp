#pragma once

#include "rollout/engine.hpp"
#include "rollout/prompt_source.hpp"
#include "rollout/reward.hpp"
#include "runtime/plugins/plugin.hpp"
#include "runtime/registry.hpp"

#include <memory>
#include <string>

namespace millrace {

using environment_entry = plugins::registered<plugin::environment_factory>;

/// Of plugins; empty without.
registry<environment_entry>& environments();

/// Adds a plugin's environments to these, and the reward "environment" to rewards(): the verdict that
/// the environment gave at the end of the conversation. \throws user_error when a name is taken
void add_plugin_environments(const plugins::loaded_plugin& from);

/// What a finished conversation's text holds, as JSON: the turns and the environment's verdict.
/// {"turns": [{"role": "model", "text": …}, …], "reward": …, "correct": …, "detail": …} or "failure".
verdict verdict_of(const std::string& conversation);

namespace generation {

/// Puts an environment around an engine: a rollout that ends by a stop token is shown to it, and goes
/// on with what it answers (tokens of version −1, that no loss sees) until it says that it is over, or
/// there is no room. Environments run in threads of their own, so that a slow tool does not stall the
/// others' decoding. Turns are told apart by the tokens' versions, so a partial conversation can go on
/// in another generator.
/// \param prompts the question and its reference, by the rollout's prompt id
std::unique_ptr<engine> with_environment(std::unique_ptr<engine> inner,
                                         const environment_entry& made_by,
                                         const nlohmann::json& params,
                                         std::shared_ptr<const model::tokenizer> tokens,
                                         std::shared_ptr<const prompt_source> prompts,
                                         std::int32_t max_context);

} // namespace generation

} // namespace millrace
