#include "actors/stream.hpp"

#include "actors/controller_actor.hpp"
#include "actors/old_logit_actor.hpp"
#include "actors/publisher_actor.hpp"
#include "actors/shell.hpp"
#include "runtime/log.hpp"

namespace millrace {

namespace {

struct recorder_state {
  static inline const char* name = "recorder";
  presence seen;
  std::vector<caf::actor> listeners; ///< plugins' actors
};

/// Carries reports to the run's record.
caf::behavior recorder_actor(caf::stateful_actor<recorder_state>* self, run_record* record) {
  report_exceptions(self);
  record->begin(now_s(self));
  auto& seen = self->state.seen;
  seen = {self, "recorder", "recorder"};
  seen.waiting("trainer", "a step to record");
  self->set_down_handler([=](const caf::down_msg& down) {
    std::erase_if(self->state.listeners,
                  [&](const caf::actor& a) { return a.address() == down.source; });
  });
  return {
    [=, &seen](const step_report& r) {
      record->step(r, now_s(self));
      seen.waiting("trainer", "the step after " + to_string(r.published));
      seen.metrics().set_keys(record->latest());
      for (const auto& to : self->state.listeners)
        self->send(to, r);
    },
    [=](filter_atom, const caf::actor& plugin) {
      auto& all = self->state.listeners;
      if (std::find(all.begin(), all.end(), plugin) == all.end()) {
        self->monitor(plugin);
        all.push_back(plugin);
      }
    },
    [=](const generator_report& r) { record->generator(r); },
    [=, &seen](const evaluation_report& r) {
      record->evaluated(r, "while training");
      seen.metrics().set_keys(record->latest());
    },
    answer_introspection(seen),
  };
}

} // namespace

stream::stream(caf::actor_system& system, stream_parts parts, run_record& record)
  : system_(system), parts_(std::move(parts)), record_(record), self_(system),
    workers_(parts_.workers) {
  std::vector<child_spec> children{controller_spec(), publisher_spec(), recorder_spec(),
                                   trainer_spec()};
  if (parts_.exact_publisher) // before the trainer, which tells it of the first version
    children.insert(children.end() - 1, exact_publisher_spec());
  if (parts_.old_logits)
    children.push_back(old_logit_spec());
  for (auto& w : workers_.all(parts_.here, handles_))
    children.push_back(std::move(w));
  for (auto& a : workers_.plugin_actors(handles_))
    children.push_back(std::move(a));
  supervisor_options o;
  o.max_restarts = parts_.workers.options.supervisor.max_restarts;
  o.more = [this](const std::string& kind, int index) {
    return workers_.more(kind, index, handles_);
  };
  supervisor_ = system.spawn(
    millrace::supervisor, std::move(o), std::move(children), caf::actor{self_},
    [](const std::string& event) { log::warning("supervisor", event); });
  self_->monitor(supervisor_);
  // It answers when all are started: from then on their handles here are set. A child that could
  // not start is reported through wait().
  self_->request(supervisor_, caf::duration{caf::infinite}, inspect_atom::value,
                 std::string("trainer"))
    .receive([](const caf::actor&) {}, [](const caf::error&) {});
}

stream::~stream() {
  self_->demonitor(supervisor_);
  caf::anon_send(supervisor_, drain_atom::value);
  self_->wait_for(supervisor_);
  handles_ = {};
}

std::optional<std::string> stream::wait(double seconds) {
  std::optional<std::string> end;
  self_->receive(
    [&](finished_atom) { end = ""; }, [&](failed_atom, const std::string& why) { end = why; },
    [&](const caf::down_msg& down) {
      end = "the supervisor died: " + text_of(down.reason, system_);
    },
    caf::after(after(seconds)) >> [] {});
  return end;
}

void stream::drain() {
  if (handles_.trainer)
    caf::anon_send(handles_.trainer, drain_atom::value);
}

std::string stream::ledger() {
  std::string out;
  if (!handles_.controller)
    throw std::runtime_error("the controller did not start");
  self_->request(handles_.controller, within(30), totals_atom::value)
    .receive([&](const std::string& text) { out = text; },
             [&](const caf::error& e) {
               throw std::runtime_error("the controller does not answer: "
                                        + text_of(e, system_));
             });
  return out;
}

child_spec stream::controller_spec() {
  const auto& s = parts_.workers.options;
  controller_actor_options o;
  auto& c = o.controller;
  c.limits = {s.rollout.max_concurrent, s.rollout.batch_size, s.rollout.eta};
  c.group_size = s.rollout.group_size;
  c.max_attempts = s.rollout.max_attempts;
  c.rollout_timeout_s = s.rollout.request_timeout_s;
  c.filter_zero_variance = s.rollout.filter_zero_variance;
  c.sampling = s.sampling;
  c.sampling.seed = s.seed;
  o.reward_timeout_s = s.reward.timeout_s;
  o.warn = [](const std::string& text) { log::warning("reward", text); };
  // Not by its death: the ledger's sums are in the summary.
  o.give_up = [owner = caf::actor{self_}](const std::string& why) {
    caf::anon_send(owner, failed_atom::value, why);
  };
  return {"controller", "controller",
          [this, o](caf::event_based_actor* parent) {
            handles_.controller = parent->spawn(controller_actor, o, parts_.feed);
            if (!parts_.saved_stream.empty())
              parent->send(handles_.controller, save_atom::value, parts_.saved_stream);
            return handles_.controller;
          },
          true};
}

child_spec stream::publisher_spec() {
  return {"publisher", "publisher",
          [this](caf::event_based_actor* parent) {
            return handles_.publisher = parent->spawn(publisher_actor<weightsync::publisher>,
                                              parts_.publisher, 5.0, "publisher");
          },
          true};
}

child_spec stream::exact_publisher_spec() {
  return {"publisher/fp32", "publisher",
          [this](caf::event_based_actor* parent) {
            return handles_.exact_publisher
                   = parent->spawn(publisher_actor<weightsync::publisher>, parts_.exact_publisher,
                                   5.0, "publisher/fp32");
          },
          true};
}

child_spec stream::recorder_spec() {
  return {"recorder", "recorder",
          [this](caf::event_based_actor* parent) {
            return handles_.recorder = parent->spawn(recorder_actor, &record_);
          },
          true};
}

child_spec stream::trainer_spec() {
  auto spawn = [this](caf::event_based_actor* parent) {
    const auto& s = parts_.workers.options;
    trainer_options o;
    o.steps = s.run.steps;
    o.eta = s.rollout.eta;
    o.checkpoint_every = s.run.checkpoint_every;
    if (s.algorithm.old_logits == old_logits_source::interrupt)
      o.in_flight_versions = s.algorithm.interrupt.slots;
    if (parts_.exact_publisher)
      o.old_logits_wait_s = s.algorithm.dedicated.wait_s;
    auto worker = parent->spawn<caf::detached>(training_worker, parts_.backend);
    trainer_peers peers{worker,             handles_.controller, handles_.publisher,
                        handles_.recorder,  caf::actor{self_},   handles_.exact_publisher};
    handles_.trainer = parent->spawn(trainer_actor, o, peers);
    parent->send(handles_.trainer, start_atom::value);
    return handles_.trainer;
  };
  return {"trainer", "trainer", spawn, true};
}

child_spec stream::old_logit_spec() {
  return {"old_logits", "old_logits",
          [this](caf::event_based_actor* parent) {
            return parent->spawn<caf::detached>(old_logit_actor, old_logit_options{},
                                                parts_.old_logits, handles_.controller,
                                                handles_.trainer);
          },
          false};
}

} // namespace millrace
