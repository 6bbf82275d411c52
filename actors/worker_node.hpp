#pragma once

#include "runtime/config/settings.hpp"

#include <functional>
#include <string>

namespace millrace {

/// One node of a cluster beside the trainer's: finds that one, runs its share of the actors, and goes
/// on after the trainer's node was away and came back. Returns the exit status when the run is over
/// (0) or `interrupted` says true (130): then generators hand their partial rollouts back first.
/// \throws user_error when it is refused, std::runtime_error when its actors can't go on
int run_worker_node(const settings& options, const node_settings& self,
                    const std::function<bool()>& interrupted);

} // namespace millrace
