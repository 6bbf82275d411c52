#include "actors/old_logit_actor.hpp"

#include "actors/shell.hpp"

namespace millrace {

namespace {

void wake(caf::stateful_actor<old_logit_state>* self) {
  auto& s = self->state;
  if (s.worker->waiting() == 0)
    s.seen.waiting("controller", "groups on their way to the buffer");
  else
    s.seen.working("computing old log-probs");
  if (!s.at_work && s.worker->waiting() > 0) {
    s.at_work = true;
    self->send(self, tick_atom::value);
  }
}

} // namespace

caf::behavior old_logit_actor(caf::stateful_actor<old_logit_state>* self,
                              std::shared_ptr<trainer::old_logit_worker> worker,
                              const caf::actor& controller, const caf::actor& trainer) {
  report_exceptions(self);
  auto& s = self->state;
  s.worker = std::move(worker);
  s.seen = {self, "old_logits", "old_logits"};
  self->send(controller, annotate_atom::value, caf::actor{self});
  self->send(trainer, annotate_atom::value, caf::actor{self});
  wake(self);
  return {
    [self](const buffer_groups& groups) {
      self->state.worker->add(groups.groups);
      wake(self);
    },
    [self](tick_atom) {
      self->state.at_work = false;
      self->state.worker->work();
      wake(self);
    },
    [self](annotate_atom, const train_batch& batch) {
      auto supply = self->state.worker->take(batch);
      wake(self);
      return supply;
    },
    answer_introspection(s.seen),
  };
}

} // namespace millrace
