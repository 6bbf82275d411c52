#pragma once

#include "actors/evaluation.hpp"
#include "actors/introspection.hpp"
#include "actors/receiver_actor.hpp"

#include <memory>

namespace millrace {

/// Evaluates some versions on held-out prompts while training goes on. Takes weights like a
/// generator does, through a receiver of its own; works a decode step, or an
/// answer to judge, at a time.
/// Takes weights_ready, answered when the evaluation is done. Sends evaluation_report to `recorder`.
class evaluator_state {
public:
  static inline const char* name = "evaluator";

  evaluator_state(caf::event_based_actor* self) : self_(self) {
  }
  caf::behavior start(std::shared_ptr<evaluation> work, std::shared_ptr<weight_intake> intake,
                      receiver_options receiver, caf::actor publisher, caf::actor recorder);

private:
  caf::event_based_actor* self_;
  std::shared_ptr<evaluation> work_;
  caf::actor recorder_;
  caf::response_promise promise_;
  presence seen_;
};

caf::behavior evaluator_actor(caf::stateful_actor<evaluator_state>* self,
                              std::shared_ptr<evaluation> work,
                              std::shared_ptr<weight_intake> intake, receiver_options receiver,
                              caf::actor publisher, caf::actor recorder);

} // namespace millrace
