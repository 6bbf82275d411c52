#include "actors/trainer_actor.hpp"

#include "actors/shell.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "runtime/metrics/catalogue.hpp"
#include "runtime/old_logit_question.hpp"

#include <algorithm>
#include <utility>

namespace millrace {

caf::behavior training_worker(caf::stateful_actor<training_worker_state>* self,
                              std::shared_ptr<training_backend> backend) {
  report_exceptions(self);
  self->state.backend = std::move(backend);
  auto& seen = self->state.seen;
  seen = {self, "train_worker", "trainer/worker"};
  // It takes one message at a time: whatever it works at ends before the next.
  auto during = [&seen](const char* state, auto work) {
    seen.working(state);
    struct rest {
      ~rest() { seen.waiting("trainer", "the next step"); }
      presence& seen;
    } after{seen};
    return work();
  };
  seen.waiting("trainer", "its first step");
  auto& b = *self->state.backend;
  return {
    [=, &b](start_atom) { return during("publishing", [&] { return b.publish_current(); }); },
    [=, &b](const train_batch& batch) {
      return during("training", [&] { return b.train(batch); });
    },
    [=, &b](save_atom, const std::string& stream) {
      during("writing a checkpoint", [&] { b.save(stream); });
    },
    [=, &b](drain_atom) { during("writing a checkpoint", [&] { b.finish_saving(); }); },
    answer_introspection(seen),
  };
}

caf::behavior trainer_state::start(trainer_options options, trainer_peers peers) {
  report_exceptions(self_);
  options_ = std::move(options);
  peers_ = std::move(peers);
  seen_ = {self_, "trainer", "trainer"};
  shown_at_ = now_s(self_);
  self_->link_to(peers_.worker); // they live and die together
  // A request to another process ends with that only when its time is over.
  self_->set_down_handler([this](const caf::down_msg& down) {
    if (annotator_.address() == down.source)
      set_annotator(nullptr); // its successor joins
  });
  return {
    [this](start_atom) { publish_first(); },
    [this](replay_joined_atom, const caf::actor& replay) {
      std::erase(replays_, replay);
      replays_.push_back(replay);
      if (std::exchange(waits_for_replay_, false))
        ask_for_batch();
    },
    [this](annotate_atom, const caf::actor& annotator) {
      self_->monitor(annotator);
      set_annotator(annotator);
    },
    [this](tick_atom) { ask_for_batch(); },
    answer_introspection(seen_),
    [this](drain_atom) {
      draining_ = true;
      if (std::exchange(waits_for_replay_, false))
        ask_for_batch();
    },
  };
}

void trainer_state::publish_first() {
  seen_.waiting("trainer/worker", "the first weights to be published");
  self_->request(peers_.worker, within(options_.step_timeout_s), start_atom::value)
    .then([this](const weights_published& p) { publish(p); },
          [this](const caf::error& e) { fail("publishing the first weights", e); });
}

void trainer_state::publish(weights_published p) {
  v_ = p.v;
  if (auto exact = std::exchange(p.exact_manifest, {}); !exact.empty() && peers_.exact_publisher)
    insist(self_, peers_.exact_publisher, options_.request_timeout_s,
           caf::make_message(weights_published{p.v, std::move(exact), p.at, {}}));
  insist(self_, peers_.publisher, options_.request_timeout_s, caf::make_message(p));
  tell_controller(p);
}

void trainer_state::tell_controller(const weights_published& p) {
  seen_.waiting("controller", "it to note " + to_string(p.v));
  // The budget opens when the controller has noted it: the next batch waits for that.
  self_->request(peers_.controller, within(options_.request_timeout_s), p)
    .then([this] { published(); },
          [this, p](const caf::error& e) {
            if (e == caf::sec::request_receiver_down)
              fail("telling the controller of " + to_string(p.v), e);
            else
              tell_controller(p);
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
  seen_.waiting("trainer/worker", "a checkpoint of " + to_string(v_));
  self_->request(peers_.controller, within(options_.request_timeout_s), save_atom::value)
    .then(
      [this, last](const std::string& stream) {
        self_->request(peers_.worker, within(options_.step_timeout_s), save_atom::value, stream)
          .then([this, last] { last ? finish_saving() : ask_for_batch(); },
                [this](const caf::error& e) { fail("writing a checkpoint", e); });
      },
      [this, last](const caf::error& e) {
        if (e == caf::sec::request_receiver_down)
          fail("asking the controller for its state", e);
        else
          checkpoint(last);
      });
}

/// A run whose last checkpoint isn't on disk has not ended well.
void trainer_state::finish_saving() {
  self_->request(peers_.worker, within(options_.step_timeout_s), drain_atom::value)
    .then([this] { self_->send(peers_.owner, finished_atom::value); },
          [this](const caf::error& e) { fail("writing the last checkpoint", e); });
}

void trainer_state::ask_for_batch() {
  if (draining_) {
    published();
    return;
  }
  if (asked_at_ == 0)
    asked_at_ = now_s(self_);
  seen_.waiting("replay", "a batch for the step from " + to_string(v_));
  if (replays_.empty()) {
    waits_for_replay_ = true;
    return;
  }
  self_->request(replays_.back(), within(options_.batch_timeout_s), batch_request{v_})
    .then([this](const train_batch& batch) { received(batch); },
          [this, asked = replays_.back()](const caf::error& e) {
            // A dead buffer is started again somewhere, and its successor joins, or has already.
            if (e == caf::sec::request_receiver_down) {
              std::erase(replays_, asked);
              self_->delayed_send(self_, after(0.05), tick_atom::value);
            } else {
              ask_for_batch();
            }
          });
}

void trainer_state::received(const train_batch& batch) {
  ensure(batch.training_from == v_, [&] {
    return "a batch for " + to_string(batch.training_from) + " came at " + to_string(v_);
  });
  supply_and_train(batch, now_s(self_) - std::exchange(asked_at_, 0.0));
}

void trainer_state::supply_and_train(train_batch batch, double waited) {
  auto began = now_s(self_);
  auto held = std::make_shared<train_batch>(std::move(batch));
  auto go_on = [=, this, ended = std::make_shared<bool>(false)](old_logit_supply* supply) {
    if (std::exchange(*ended, true))
      return;
    without_supply_ = {};
    if (supply != nullptr)
      held->supply = std::move(*supply);
    held->supply.waited_s = now_s(self_) - began;
    train(*held, waited);
  };
  auto with = [=](old_logit_supply& supply) { go_on(&supply); };
  auto without = [=](const caf::error&) { go_on(nullptr); };
  auto limit = within(options_.request_timeout_s);
  if (options_.in_flight_versions) {
    seen_.waiting("controller", "the rollouts in flight, for their old log-probs");
    in_flight_query query{{std::max(0, v_.value - *options_.in_flight_versions)}};
    self_->request(peers_.controller, limit, query).then(with, without);
  } else if (annotator_) {
    seen_.waiting("old_logits", "the old log-probs of the batch from " + to_string(v_));
    without_supply_ = [=] { go_on(nullptr); };
    ask_annotator(old_logit_question_of(*held), held, go_on);
  } else {
    go_on(nullptr);
  }
}

void trainer_state::ask_annotator(const old_logit_question& question,
                                  const std::shared_ptr<const train_batch>& batch,
                                  const std::function<void(old_logit_supply*)>& go_on) {
  auto with = [=, this, asked = annotator_](old_logit_supply& supply) {
    auto again = question;
    if (question.missed.empty() && asked == annotator_)
      for (const auto& g : batch->groups)
        if (std::binary_search(supply.unknown.begin(), supply.unknown.end(), g.group))
          again.missed.push_back(g);
    if (again.missed.size() > question.missed.size())
      ask_annotator(again, batch, go_on);
    else
      go_on(&supply);
  };
  const auto limit = within(options_.request_timeout_s + options_.old_logits_wait_s);
  self_->request(annotator_, limit, question).then(with, [=](const caf::error&) { go_on(nullptr); });
}

/// What the one before was asked is not waited for any more.
void trainer_state::set_annotator(const caf::actor& annotator) {
  annotator_ = annotator;
  if (auto go_on = std::exchange(without_supply_, {}))
    go_on();
}

void trainer_state::train(const train_batch& batch, double waited) {
  seen_.waiting("trainer/worker", "the step from " + to_string(v_));
  show(batch);
  self_->request(peers_.worker, within(options_.step_timeout_s), batch)
    .then(
      [this, waited](train_result& result) {
        auto& values = result.report.values;
        values["trainer_wait_s"] = waited;
        if (auto warning = drift_.look(values))
          log::warning("trainer", *warning);
        values["off_policy"] = drift_.apart() ? 1 : 0;
        ensure(result.report.published == v_.next(),
               [&] { return "the worker went from " + to_string(v_) + " to "
                            + to_string(result.report.published); });
        show(result.report, waited);
        self_->send(peers_.recorder, result.report);
        publish({result.report.published, std::move(result.manifest), now_s(self_),
                 std::move(result.exact_manifest)});
      },
      [this](const caf::error& e) { fail("training from " + to_string(v_), e); });
}

void trainer_state::fail(const std::string& what, const caf::error& e) {
  self_->quit(caf::make_error(caf::sec::runtime_error,
                              what + ": " + text_of(e, self_->system())));
}

// -- metrics --------------------------------------------------------------------------------------

void trainer_state::show(const train_batch& batch) {
  auto& m = seen_.metrics();
  for (const auto& g : batch.groups)
    for (const auto& r : g.rollouts) {
      m.add(metrics::rollouts_trained);
      auto oldest = r.oldest();
      if (oldest < version{0})
        continue; // every token is masked
      auto head = staleness(batch.training_from, oldest);
      auto tail = staleness(batch.training_from, r.youngest());
      m.observe(metrics::rollout_staleness, "head", head);
      m.observe(metrics::rollout_staleness, "tail", tail);
      m.observe(metrics::rollout_staleness, "span", head - tail);
    }
}

void trainer_state::show(const step_report& report, double waited) {
  auto& m = seen_.metrics();
  const auto& values = report.values;
  auto value = [&](const std::string& key) {
    auto at = values.find(key);
    return at == values.end() ? 0.0 : at->second;
  };
  m.set_keys(values);
  m.add(metrics::steps_trained);
  m.add(metrics::steps_skipped, value("skipped_updates"));
  m.add(metrics::tokens_trained, value("trained_tokens"));
  m.add(metrics::tokens_useful, value("useful_tokens"));
  m.add(metrics::trainer_busy, value("step_s"));
  m.add(metrics::trainer_waited, waited);
  m.add(metrics::publish_bytes, value("publish_bytes"));
  for (std::size_t s = 0; s < report.staleness.size(); ++s)
    if (report.staleness[s] > 0)
      m.observe(metrics::trained_staleness, static_cast<double>(s),
                static_cast<std::uint64_t>(report.staleness[s]));
  for (const char* stage : {"advantage", "old_logits", "forward_backward", "optimizer", "publish"})
    m.observe(metrics::step_time, stage, value(std::string(stage) + "_s"));
  auto now = now_s(self_);
  m.observe(metrics::step_time, "wait", waited);
  m.observe(metrics::step_time, "total", now - shown_at_);
  m.set(metrics::trainer_idle_ratio,
        std::clamp(waited / std::max(now - shown_at_, 1e-9), 0.0, 1.0));
  m.set(metrics::staleness_bound, options_.eta);
  shown_at_ = now;
}

caf::behavior trainer_actor(caf::stateful_actor<trainer_state>* self, trainer_options options,
                            trainer_peers peers) {
  return self->state.start(std::move(options), std::move(peers));
}

} // namespace millrace
