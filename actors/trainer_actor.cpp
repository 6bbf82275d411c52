#include "actors/trainer_actor.hpp"

#include "actors/shell.hpp"
#include "runtime/error.hpp"

namespace millrace {

caf::behavior training_worker(caf::stateful_actor<training_worker_state>* self,
                              std::shared_ptr<training_backend> backend) {
  report_exceptions(self);
  self->state.backend = std::move(backend);
  return {
    [self](start_atom) { return self->state.backend->publish_current(); },
    [self](const train_batch& batch) { return self->state.backend->train(batch); },
    [self](save_atom, const std::string& stream) { self->state.backend->save(stream); },
  };
}

caf::behavior trainer_state::start(trainer_options options, trainer_peers peers) {
  report_exceptions(self_);
  options_ = std::move(options);
  peers_ = std::move(peers);
  self_->link_to(peers_.worker); // they live and die together
  return {
    [this](start_atom) { publish_first(); },
    [this](joined_atom, const caf::actor& replay) { peers_.replay = replay; },
    [this](tick_atom) { ask_for_batch(); },
    [this](drain_atom) { draining_ = true; },
  };
}

void trainer_state::publish_first() {
  self_->request(peers_.worker, within(options_.step_timeout_s), start_atom::value)
    .then([this](const weights_published& p) { publish(p); },
          [this](const caf::error& e) { fail("publishing the first weights", e); });
}

void trainer_state::publish(const weights_published& p) {
  v_ = p.v;
  insist(self_, peers_.publisher, options_.request_timeout_s, caf::make_message(p));
  // The budget opens when the controller has noted it: the next batch waits for that.
  self_->request(peers_.controller, within(options_.request_timeout_s), p)
    .then([this] { published(); },
          [this, p](const caf::error& e) {
            if (e == caf::sec::request_receiver_down)
              fail("telling the controller of " + to_string(p.v), e);
            else
              publish(p);
          });
}

void trainer_state::published() {
  auto last = draining_ || v_.value >= options_.steps;
  auto due = options_.checkpoint_every > 0 && v_.value > 0
             && v_.value % options_.checkpoint_every == 0;
  if (last || due)
    checkpoint(last);
  else
    ask_for_batch();
}

void trainer_state::checkpoint(bool last) {
  self_->request(peers_.controller, within(options_.request_timeout_s), save_atom::value)
    .then(
      [this, last](const std::string& stream) {
        self_->request(peers_.worker, within(options_.step_timeout_s), save_atom::value, stream)
          .then(
            [this, last] {
              if (last)
                self_->send(peers_.owner, finished_atom::value);
              else
                ask_for_batch();
            },
            [this](const caf::error& e) { fail("writing a checkpoint", e); });
      },
      [this, last](const caf::error& e) {
        if (e == caf::sec::request_receiver_down)
          fail("asking the controller for its state", e);
        else
          checkpoint(last);
      });
}

void trainer_state::ask_for_batch() {
  if (draining_) {
    published();
    return;
  }
  if (asked_at_ == 0)
    asked_at_ = now_s(self_);
  self_->request(peers_.replay, within(options_.batch_timeout_s), batch_request{v_})
    .then([this](const train_batch& batch) { train(batch); },
          [this](const caf::error& e) {
            // A dead buffer is replaced by the supervisor, which tells us.
            if (e == caf::sec::request_receiver_down)
              self_->delayed_send(self_, after(0.05), tick_atom::value);
            else
              ask_for_batch();
          });
}

void trainer_state::train(const train_batch& batch) {
  ensure(batch.training_from == v_, [&] {
    return "a batch for " + to_string(batch.training_from) + " came at " + to_string(v_);
  });
  auto waited = now_s(self_) - std::exchange(asked_at_, 0.0);
  self_->request(peers_.worker, within(options_.step_timeout_s), batch)
    .then(
      [this, waited](train_result& result) {
        result.report.values["trainer_wait_s"] = waited;
        ensure(result.report.published == v_.next(),
               [&] { return "the worker went from " + to_string(v_) + " to "
                            + to_string(result.report.published); });
        self_->send(peers_.recorder, result.report);
        publish({result.report.published, std::move(result.manifest), now_s(self_)});
      },
      [this](const caf::error& e) { fail("training from " + to_string(v_), e); });
}

void trainer_state::fail(const std::string& what, const caf::error& e) {
  self_->quit(caf::make_error(caf::sec::runtime_error,
                              what + ": " + text_of(e, self_->system())));
}

caf::behavior trainer_actor(caf::stateful_actor<trainer_state>* self, trainer_options options,
                            trainer_peers peers) {
  return self->state.start(std::move(options), std::move(peers));
}

} // namespace millrace
