#include "actors/evaluator_actor.hpp"

#include "actors/shell.hpp"

namespace millrace {

caf::behavior evaluator_state::start(std::shared_ptr<evaluation> work,
                                     std::shared_ptr<weight_intake> intake,
                                     receiver_options receiver, caf::actor publisher,
                                     caf::actor recorder) {
  report_exceptions(self_);
  work_ = std::move(work);
  recorder_ = std::move(recorder);
  self_->spawn<caf::linked + caf::detached>(receiver_actor, std::move(receiver),
                                            std::move(intake), caf::actor{self_},
                                            std::move(publisher));
  return {
    [this](const weights_ready& ready) -> caf::result<void> {
      promise_ = self_->make_response_promise();
      work_->begin(ready.v);
      self_->send(self_, decode_atom::value);
      return caf::delegated<void>{};
    },
    [this](decode_atom) {
      if (work_->step()) {
        self_->send(self_, decode_atom::value);
        return;
      }
      self_->send(recorder_, work_->report());
      promise_.deliver(caf::unit);
    },
  };
}

caf::behavior evaluator_actor(caf::stateful_actor<evaluator_state>* self,
                              std::shared_ptr<evaluation> work,
                              std::shared_ptr<weight_intake> intake, receiver_options receiver,
                              caf::actor publisher, caf::actor recorder) {
  return self->state.start(std::move(work), std::move(intake), std::move(receiver),
                           std::move(publisher), std::move(recorder));
}

} // namespace millrace
