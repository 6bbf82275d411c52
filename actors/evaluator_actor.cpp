#include "actors/evaluator_actor.hpp"

#include "actors/shell.hpp"
#include "runtime/log.hpp"
#include "runtime/metrics/catalogue.hpp"

namespace millrace {

namespace {

constexpr double evaluation_timeout_s = 3600;

} // namespace

caf::behavior evaluator_state::start(std::shared_ptr<evaluation> work,
                                     std::shared_ptr<weight_intake> intake,
                                     receiver_options receiver, caf::actor publisher,
                                     caf::actor recorder) {
  report_exceptions(self_);
  work_ = std::move(work);
  recorder_ = std::move(recorder);
  seen_ = {self_, "evaluator", "evaluator"};
  seen_.waiting("publisher", "a version to evaluate");
  receiver.install_timeout_s = evaluation_timeout_s; // it answers when the evaluation is done
  receiver.passed_over = [self = caf::actor{self_}](version v) { caf::anon_send(self, v); };
  self_->spawn<caf::linked + caf::detached>(receiver_actor, std::move(receiver),
                                            std::move(intake), caf::actor{self_},
                                            std::move(publisher));
  return {
    [this](const weights_ready& ready) -> caf::result<void> {
      promise_ = self_->make_response_promise();
      seen_.working("evaluating " + to_string(ready.v));
      work_->begin(ready.v);
      self_->send(self_, decode_atom::value);
      return caf::delegated<void>{};
    },
    [this](decode_atom) {
      auto more = work_->step();
      seen_.metrics().set(metrics::evaluation_progress, work_->progress());
      if (more) {
        self_->send(self_, decode_atom::value);
        return;
      }
      self_->send(recorder_, work_->report());
      seen_.metrics().add(metrics::evaluations, "done", 1);
      seen_.waiting("publisher", "a version to evaluate");
      promise_.deliver(caf::unit);
    },
    [this](version passed_over) {
      seen_.metrics().add(metrics::evaluations, "superseded", 1);
      log::warning("evaluator", to_string(passed_over) + " is not evaluated: newer weights came "
                                "before it was ready for it; a larger run.eval_every or fewer "
                                "eval.prompts would leave it the time");
    },
    answer_introspection(seen_),
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
