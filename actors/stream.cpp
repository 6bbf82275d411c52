#include "actors/stream.hpp"

#include "actors/controller_actor.hpp"
#include "actors/engine_intake.hpp"
#include "actors/evaluator_actor.hpp"
#include "actors/generator_actor.hpp"
#include "actors/publisher_actor.hpp"
#include "actors/replay_actor.hpp"
#include "actors/reward_actor.hpp"
#include "actors/shell.hpp"
#include "runtime/log.hpp"

namespace millrace {

namespace {

struct recorder_state {
  static inline const char* name = "recorder";
};

/// Carries reports to the run's record.
caf::behavior recorder_actor(caf::stateful_actor<recorder_state>* self, run_record* record) {
  report_exceptions(self);
  record->begin(now_s(self));
  return {
    [=](const step_report& r) { record->step(r, now_s(self)); },
    [=](const generator_report& r) { record->generator(r); },
    [=](const evaluation_report& r) { record->evaluated(r, "while training"); },
  };
}

} // namespace

stream_config::stream_config() {
  millrace::add_message_types(*this);
  set("scheduler.policy", caf::atom("sharing"));
  set("scheduler.max-threads", std::size_t{2});
}

double stream_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

stream::stream(caf::actor_system& system, stream_parts parts, run_record& record)
  : system_(system), parts_(std::move(parts)), record_(record), self_(system) {
  const auto& s = parts_.options;
  std::vector<child_spec> children{controller_spec(), publisher_spec(), recorder_spec()};
  for (int i = 0; i < s.generator.count; ++i)
    children.push_back(generator_spec(i));
  for (int i = 0; i < s.reward.workers; ++i)
    children.push_back(reward_spec(i));
  children.push_back(replay_spec());
  if (s.run.eval_every > 0)
    children.push_back(evaluator_spec());
  children.push_back(trainer_spec());
  supervisor_ = system.spawn(
    millrace::supervisor, supervisor_options{s.supervisor.max_restarts}, std::move(children),
    caf::actor{self_}, [](const std::string& event) { log::warning("supervisor", event); });
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
  for (auto* a : {&controller_, &publisher_, &recorder_, &replay_, &trainer_})
    *a = nullptr;
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
  if (trainer_)
    caf::anon_send(trainer_, drain_atom::value);
}

std::string stream::ledger() {
  std::string out;
  if (!controller_)
    throw std::runtime_error("the controller did not start");
  self_->request(controller_, within(30), totals_atom::value)
    .receive([&](const std::string& text) { out = text; },
             [&](const caf::error& e) {
               throw std::runtime_error("the controller does not answer: "
                                        + text_of(e, system_));
             });
  return out;
}

child_spec stream::controller_spec() {
  const auto& s = parts_.options;
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
  return {"controller",
          [this, o](caf::event_based_actor* parent) {
            controller_ = parent->spawn(controller_actor, o, parts_.feed);
            if (!parts_.saved_stream.empty())
              parent->send(controller_, save_atom::value, parts_.saved_stream);
            return controller_;
          },
          true,
          {}};
}

child_spec stream::publisher_spec() {
  return {"publisher",
          [this](caf::event_based_actor* parent) {
            return publisher_ = parent->spawn(publisher_actor<weightsync::publisher>,
                                              parts_.publisher, 5.0);
          },
          true,
          {}};
}

child_spec stream::recorder_spec() {
  return {"recorder",
          [this](caf::event_based_actor* parent) {
            return recorder_ = parent->spawn(recorder_actor, &record_);
          },
          true,
          {}};
}

child_spec stream::generator_spec(int index) {
  auto name = "generator-" + std::to_string(index);
  auto spawn = [this, name](caf::event_based_actor* parent) -> caf::actor {
    const auto& s = parts_.options;
    generation::engine_options e;
    e.max_batch = s.generator.max_batch;
    e.kv_cache_tokens = s.generator.kv_cache_tokens;
    e.threads = s.generator.threads;
    e.deterministic = s.deterministic;
    e.kv = s.generator.kv == kv_policy::keep ? generation::kv_on_swap::keep
                                             : generation::kv_on_swap::recompute;
    e.clock = stream_now;
    std::shared_ptr<generation::engine> engine
      = generation::make_engine(e, parts_.model, parts_.tokens);
    auto intake = std::make_shared<engine_intake>(parts_.carrier, engine, s.weight_sync.timeout_s,
                                                  s.weight_sync.retries + 1);
    generator_options o;
    o.name = name;
    o.capacity = 2 * std::int64_t{s.generator.max_batch};
    o.progress_every_tokens = s.rollout.progress_every_tokens;
    o.receiver.name = name + "#" + std::to_string(++lives_); // leases are not inherited
    return parent->spawn<caf::detached>(generator_actor, o, engine, intake,
                                        generator_peers{controller_, publisher_, recorder_});
  };
  return {name, spawn, false, {}};
}

child_spec stream::reward_spec(int index) {
  auto name = "reward-" + std::to_string(index);
  return {name,
          [this, name](caf::event_based_actor* parent) {
            return parent->spawn<caf::detached>(reward_actor, name, parts_.judge, controller_);
          },
          false,
          {}};
}

child_spec stream::replay_spec() {
  const auto& s = parts_.options;
  replay_actor_options o;
  o.buffer.capacity = s.replay_capacity();
  o.buffer.batch_size = s.rollout.batch_size;
  o.buffer.group_size = s.rollout.group_size;
  o.buffer.eta = s.rollout.eta;
  o.buffer.over_bound = s.rollout.over_bound;
  o.wait_timeout_s = s.rollout.request_timeout_s;
  return {"replay",
          [this, o](caf::event_based_actor* parent) {
            return replay_ = parent->spawn(replay_actor, o, controller_);
          },
          false,
          [this](caf::event_based_actor* parent, const caf::actor& successor) {
            parent->send(trainer_, joined_atom::value, successor);
          }};
}

child_spec stream::trainer_spec() {
  auto spawn = [this](caf::event_based_actor* parent) {
    const auto& s = parts_.options;
    trainer_options o;
    o.steps = s.run.steps;
    o.checkpoint_every = s.run.checkpoint_every;
    auto worker = parent->spawn<caf::detached>(training_worker, parts_.backend);
    trainer_ = parent->spawn(trainer_actor, o,
                             trainer_peers{worker, controller_, replay_, publisher_, recorder_,
                                           caf::actor{self_}});
    parent->send(trainer_, start_atom::value);
    return trainer_;
  };
  return {"trainer", spawn, true, {}};
}

child_spec stream::evaluator_spec() {
  auto spawn = [this](caf::event_based_actor* parent) {
    const auto& s = parts_.options;
    auto work = std::make_shared<evaluation>(s, parts_.model, parts_.tokens, *parts_.prompts,
                                             parts_.judge);
    auto intake = std::make_shared<engine_intake>(parts_.carrier, work->engine(),
                                                  s.weight_sync.timeout_s, s.weight_sync.retries);
    receiver_options o;
    o.name = "evaluator#" + std::to_string(++lives_);
    o.wanted = [every = s.run.eval_every, last = s.run.steps](version v) {
      return v.value > 0 && v.value < last && v.value % every == 0;
    };
    return parent->spawn<caf::detached>(evaluator_actor, work, intake, o, publisher_, recorder_);
  };
  return {"evaluator", spawn, false, {}};
}

} // namespace millrace
