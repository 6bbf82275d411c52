#pragma once

#include "actors/introspection.hpp"
#include "trainer/old_logit_worker.hpp"

#include <memory>

namespace millrace {

/// The old-logit actor (algorithm.old_logits "dedicated"): on a thread of its own it computes the old
/// log-probs of groups on their way to the buffer, while the trainer is at work. One chunk per message
/// to itself, so that the trainer's question is answered after one chunk at most. Joins controller and
/// trainer by itself; should it die, the trainer computes them, and its successor starts afresh.
///
/// Takes buffer_groups; (annotate_atom, train_batch) → old_logit_supply: what is known so far.
struct old_logit_state {
  static inline const char* name = "old_logits";
  std::shared_ptr<trainer::old_logit_worker> worker;
  presence seen;
  bool at_work = false; ///< a message to itself is on its way
};

caf::behavior old_logit_actor(caf::stateful_actor<old_logit_state>* self,
                              std::shared_ptr<trainer::old_logit_worker> worker,
                              const caf::actor& controller, const caf::actor& trainer);

} // namespace millrace
