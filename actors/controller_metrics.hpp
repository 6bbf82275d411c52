#pragma once

#include "rollout/controller.hpp"
#include "runtime/metrics/metric_set.hpp"

#include <span>
#include <string>

namespace millrace {

/// Writes what the rollout controller knows into metrics of the kind "controller". O(rollouts in
/// flight): for a few times a second, not for every message.
void show_controller(metric_set& into, const rollout_controller& c, const controller_options& o);

/// Mean and spread of the rewards of groups that were just joined.
void count_rewards(metric_set& into, std::span<const scored_group> groups);

struct wait_reason {
  std::string on; ///< empty: nothing is waited for
  std::string reason;
};

/// Whom the stream is waiting for, as far as the controller can see: while the trainer has a batch,
/// or could have one, the trainer; else whoever has the rollouts that it lacks.
[[nodiscard]] wait_reason controller_wait(const rollout_controller& c,
                                          const admission_limits& limits);

} // namespace millrace
