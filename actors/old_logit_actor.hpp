#pragma once

#include "actors/introspection.hpp"
#include "actors/receiver_actor.hpp"
#include "trainer/old_logit_worker.hpp"

#include <memory>
#include <optional>
#include <string>

namespace millrace {

/// Where an old-logit actor on a node of its own has its versions from.
struct old_logit_intake {
  std::shared_ptr<weight_intake> intake; ///< leaves each version where the worker finds it
  receiver_options receiver;
  caf::actor publisher; ///< of the weights in full precision
};

struct old_logit_options {
  std::string name = "old_logits";
  /// How long the trainer waits for what is not computed yet: 0 in its own process, where it then
  /// does that itself.
  double wait_s = 0;
  std::optional<old_logit_intake> versions; ///< empty: the trainer puts them there
};

/// The old-logit actor (algorithm.old_logits "dedicated"), in the trainer's process or on a node of its
/// own: on a thread of its own it computes the old log-probs of groups on their way to the buffer,
/// while the trainer is at work. One chunk per message to itself, so that the trainer's question is
/// taken after one chunk at most. Joins controller and trainer by itself; should it die, the trainer
/// does without, and its successor starts afresh, with the versions from then on.
///
/// Takes buffer_groups; old_logit_question → old_logit_supply: what is known of these rollouts, at
/// once or, with wait_s, when that is all that can be, once it was given the groups that it lacked;
/// weights_ready from its receiver; (drain_atom).
class old_logit_state {
public:
  static inline const char* name = "old_logits";

  old_logit_state(caf::event_based_actor* self) : self_(self) {
  }
  caf::behavior start(old_logit_options options, std::shared_ptr<trainer::old_logit_worker> worker,
                      const caf::actor& controller, const caf::actor& trainer);

private:
  /// The trainer's question, while it waits.
  struct question {
    old_logit_question what;
    caf::typed_response_promise<old_logit_supply> promise;
    double until = 0; ///< it is answered with what there is
  };

  void go_on();
  void answer();
  void show();

  caf::event_based_actor* self_;
  old_logit_options options_;
  std::shared_ptr<trainer::old_logit_worker> worker_;
  presence seen_;
  std::optional<question> asked_;
  bool at_work_ = false; ///< a message to itself is on its way
};

caf::behavior old_logit_actor(caf::stateful_actor<old_logit_state>* self, old_logit_options options,
                              std::shared_ptr<trainer::old_logit_worker> worker,
                              const caf::actor& controller, const caf::actor& trainer);

} // namespace millrace
