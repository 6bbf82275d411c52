#include "actors/old_logit_actor.hpp"

#include "actors/shell.hpp"
#include "runtime/metrics/catalogue.hpp"

#include <utility>

namespace millrace {

caf::behavior old_logit_state::start(old_logit_options options,
                                     std::shared_ptr<trainer::old_logit_worker> worker,
                                     const caf::actor& controller, const caf::actor& trainer) {
  report_exceptions(self_);
  options_ = std::move(options);
  worker_ = std::move(worker);
  seen_ = {self_, "old_logits", options_.name};
  if (auto& v = options_.versions)
    self_->spawn<caf::linked + caf::detached>(receiver_actor, v->receiver, v->intake,
                                              caf::actor{self_}, v->publisher);
  self_->send(controller, annotate_atom::value, caf::actor{self_});
  self_->send(trainer, annotate_atom::value, caf::actor{self_});
  go_on();
  return {
    [this](const buffer_groups& groups) {
      worker_->add(groups.groups);
      go_on();
    },
    [this](tick_atom) {
      at_work_ = false;
      worker_->work();
      go_on();
    },
    [this](const weights_ready&) { go_on(); }, // the intake has put them there
    [this](const old_logit_question& what) -> caf::result<old_logit_supply> {
      if (asked_) // it has gone on without
        answer();
      if (options_.wait_s > 0) {
        worker_->add(what.missed);
        worker_->want(what);
        if (auto unknown = worker_->unknown(what); !unknown.empty() && what.missed.empty())
          return old_logit_supply{.unknown = std::move(unknown)};
      }
      asked_.emplace(what, self_->make_response_promise<old_logit_supply>(),
                     now_s(self_) + options_.wait_s);
      auto promise = asked_->promise;
      go_on();
      return promise;
    },
    [this](drain_atom) { self_->quit(caf::exit_reason::user_shutdown); },
    answer_introspection(seen_),
    // In a lull: a question may be overdue. (A delayed message would keep a dead actor's thread.)
    caf::after(std::chrono::milliseconds(250)) >> [this] { go_on(); },
  };
}

void old_logit_state::answer() {
  asked_->promise.deliver(worker_->take(asked_->what));
  asked_.reset();
}

/// After anything has happened: whom to answer, what to do next, and what others are to see of it.
void old_logit_state::go_on() {
  if (asked_ && (now_s(self_) >= asked_->until || worker_->settled(asked_->what)))
    answer();
  auto work = worker_->can_work();
  if (work && !std::exchange(at_work_, true))
    self_->send(self_, tick_atom::value);
  if (work)
    seen_.working(asked_ ? "computing old log-probs that the trainer waits for"
                         : "computing old log-probs");
  else if (worker_->waiting() > 0)
    seen_.waiting("publisher/fp32", "the weights of versions that groups here are of");
  else
    seen_.waiting("controller", "groups on their way to the buffer");
  show();
}

void old_logit_state::show() {
  auto p = worker_->progress();
  auto& m = seen_.metrics();
  auto number = [](std::int64_t n) { return static_cast<double>(n); };
  m.set(metrics::old_logit_groups, "waiting", number(p.waiting));
  m.set(metrics::old_logit_groups, "done", number(p.done));
  m.set(metrics::old_logit_versions, number(p.versions));
  m.set(metrics::old_logit_bytes, "memory", number(p.memory_bytes));
  m.set(metrics::old_logit_bytes, "disk", number(p.disk_bytes));
  m.set_total(metrics::old_logit_tokens, "known", number(p.known));
  m.set_total(metrics::old_logit_tokens, "too late", number(p.late));
  m.set_total(metrics::old_logit_tokens, "no weights", number(p.no_weights));
  m.set_total(metrics::old_logit_forwards, number(p.forwards));
  m.set_total(metrics::old_logit_busy, p.busy_s);
}

caf::behavior old_logit_actor(caf::stateful_actor<old_logit_state>* self, old_logit_options options,
                              std::shared_ptr<trainer::old_logit_worker> worker,
                              const caf::actor& controller, const caf::actor& trainer) {
  return self->state.start(std::move(options), std::move(worker), controller, trainer);
}

} // namespace millrace
