#include "actors/generator_actor.hpp"

#include "actors/shell.hpp"
#include "runtime/error.hpp"

namespace millrace {

caf::behavior generator_state::start(generator_options options,
                                     std::shared_ptr<generation::engine> engine,
                                     std::shared_ptr<weight_intake> intake,
                                     generator_peers peers) {
  report_exceptions(self_);
  options_ = std::move(options);
  engine_ = std::move(engine);
  peers_ = std::move(peers);
  report_.generator = options_.name;
  report_.v = no_version;
  started_at_ = now_s(self_);
  caf::actor self{self_};
  if (options_.receiver_thread)
    self_->spawn<caf::linked + caf::detached>(receiver_actor, options_.receiver, std::move(intake),
                                              self, peers_.publisher);
  else
    self_->spawn<caf::linked>(receiver_actor, options_.receiver, std::move(intake), self,
                              peers_.publisher);
  self_->delayed_send(self_, after(options_.report_s), tick_atom::value);
  return {
    [this](assign_tasks& assigned) { take(assigned); },
    [this](const cancel_rollouts& cancel) {
      for (auto id : cancel.ids) {
        engine_->cancel(id);
        held_.erase(id);
      }
    },
    [this](decode_atom) { decode(); },
    [this](const weights_ready& ready) { install(ready); },
    [this](drain_atom) {
      draining_ = true;
      return_all("its generator stopped");
    },
    [this](tick_atom) {
      report();
      self_->delayed_send(self_, after(options_.report_s), tick_atom::value);
    },
  };
}

void generator_state::take(assign_tasks& assigned) {
  rollouts_returned refused;
  for (auto& task : assigned.tasks) {
    auto id = task.so_far.id;
    if (held_.contains(id))
      continue;
    if (draining_) {
      refused.rollouts.push_back(std::move(task.so_far));
      refused.reason = "its generator stopped";
      continue;
    }
    auto again = task.so_far;
    try {
      engine_->submit(std::move(task));
      held_.insert(id);
    } catch (const user_error& e) {
      refused.rollouts.push_back(std::move(again));
      refused.reason = e.what();
    }
  }
  if (!refused.rollouts.empty())
    insist(self_, peers_.controller, options_.request_timeout_s,
           caf::make_message(std::move(refused)));
  wake();
}

void generator_state::wake() {
  if (decoding_ || engine_->running() + engine_->waiting() == 0 || engine_->current() < version{0})
    return;
  decoding_ = true;
  if (options_.step_delay)
    self_->delayed_send(self_, after(options_.step_delay()), decode_atom::value);
  else
    self_->send(self_, decode_atom::value);
}

void generator_state::decode() {
  decoding_ = false;
  auto began = now_s(self_);
  auto done = engine_->step();
  report_.busy_s += now_s(self_) - began;
  if (!done.empty()) {
    for (const auto& r : done)
      held_.erase(r.id);
    insist(self_, peers_.controller, options_.request_timeout_s,
           caf::make_message(rollouts_finished{std::move(done)}));
  }
  if (options_.progress_every_tokens > 0
      && ++steps_since_progress_ >= options_.progress_every_tokens) {
    steps_since_progress_ = 0;
    self_->send(peers_.controller, rollouts_progress{engine_->partials()});
  }
  wake();
}

void generator_state::install(const weights_ready& ready) {
  auto swap = engine_->install(ready.v);
  swap.total_s = now_s(self_) - ready.noticed_at;
  swap.pull_s = ready.pull_s;
  swap.verify_s = ready.verify_s;
  swap.bytes = ready.bytes;
  report_.v = ready.v;
  report_.swaps.push_back(swap);
  // One message joins and acknowledges: two could overtake each other.
  insist(self_, peers_.controller, options_.request_timeout_s,
         caf::make_message(joined_atom::value, options_.name, options_.capacity, ready.v,
                           caf::actor{self_}),
         [this, v = ready.v] { return report_.v == v; });
  report();
  wake();
}

void generator_state::return_all(const std::string& reason) {
  held_.clear();
  insist(self_, peers_.controller, options_.request_timeout_s,
         caf::make_message(rollouts_returned{engine_->drain(), reason}));
}

void generator_state::report() {
  auto s = engine_->statistics();
  report_.running = static_cast<std::int64_t>(engine_->running());
  report_.waiting = static_cast<std::int64_t>(engine_->waiting());
  report_.generated_tokens = s.sampled_tokens;
  report_.reprefilled_tokens = s.reprefilled_tokens;
  report_.idle_s = now_s(self_) - started_at_ - report_.busy_s;
  self_->send(peers_.recorder, report_);
  report_.swaps.clear();
}

caf::behavior generator_actor(caf::stateful_actor<generator_state>* self,
                              generator_options options,
                              std::shared_ptr<generation::engine> engine,
                              std::shared_ptr<weight_intake> intake, generator_peers peers) {
  return self->state.start(std::move(options), std::move(engine), std::move(intake),
                           std::move(peers));
}

} // namespace millrace
