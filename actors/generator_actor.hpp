#pragma once

#include "actors/introspection.hpp"
#include "actors/receiver_actor.hpp"
#include "rollout/engine.hpp"

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>

namespace millrace {

struct generator_options {
  std::string name;
  std::int64_t capacity = 128; ///< rollouts that it takes at once, waiting ones included
  std::int32_t progress_every_tokens = 0; ///< decode steps between progress reports; 0: never
  double request_timeout_s = 5;
  /// Report all partial rollouts at a weight swap, before acknowledging the new version: whoever knows
  /// of the acknowledgement then knows all tokens of the versions before.
  bool progress_at_swap = false;
  double report_s = 0.5; ///< between two reports to the recorder
  receiver_options receiver;
  bool receiver_thread = true; ///< the receiver pulls on a thread of its own
  /// Seconds that one decode step takes (the simulator's clock); empty: as long as it takes.
  std::function<double()> step_delay;
};

/// The actors a generator talks to.
struct generator_peers {
  caf::actor controller, publisher, recorder;
};

/// A generator: decodes one step per message to itself, so that an urgent message (new weights) is
/// seen within one step. Spawns its weight receiver, and joins the stream by itself once it has
/// weights.
///
/// Takes: assign_tasks, cancel_rollouts, weights_ready; (drain_atom): hands its partial rollouts
/// back and takes no more.
class generator_state {
public:
  static inline const char* name = "generator";

  generator_state(caf::event_based_actor* self) : self_(self) {
  }
  caf::behavior start(generator_options options, std::shared_ptr<generation::engine> engine,
                      std::shared_ptr<weight_intake> intake, generator_peers peers);

private:
  void take(assign_tasks& assigned);
  void cancel(std::span<const rollout_id> ids);
  void wake();
  void decode();
  void install(const weights_ready& ready);
  void return_all(const std::string& reason);
  void report();
  void show(const swap_report& swap);
  void show(std::span<const rollout> done);
  void show_load();

  caf::event_based_actor* self_;
  generator_options options_;
  std::shared_ptr<generation::engine> engine_;
  generator_peers peers_;
  std::unordered_set<rollout_id> held_; ///< a second copy of a task is not a second rollout
  generator_report report_;
  presence seen_;
  std::deque<std::pair<double, double>> idle_at_; ///< (time, idle seconds) of the last reports
  double started_at_ = 0;
  std::int32_t steps_since_progress_ = 0;
  bool decoding_ = false;
  bool draining_ = false;
};

caf::behavior generator_actor(caf::stateful_actor<generator_state>* self,
                              generator_options options,
                              std::shared_ptr<generation::engine> engine,
                              std::shared_ptr<weight_intake> intake, generator_peers peers);

} // namespace millrace
