#include "test/actors/simulated_stream.hpp"

#include "actors/generator_actor.hpp"
#include "actors/publisher_actor.hpp"
#include "actors/replay_actor.hpp"
#include "actors/reward_actor.hpp"
#include "actors/shell.hpp"
#include "actors/supervisor.hpp"
#include "actors/trainer_actor.hpp"
#include "runtime/error.hpp"

#include <caf/scheduler/test_coordinator.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace millrace::simulation {

namespace {

/// What all fakes of a run share.
struct world {
  explicit world(const scenario& s)
    : given(s), random(s.seed), weather(std::make_shared<link_weather>()),
      memory(std::make_shared<fake_memory>()),
      publisher(std::make_shared<weightsync::publisher_machine>(2, 2.0)),
      checker(s.eta, s.batch_size) {
    weather->random.seed(s.seed + 1);
    weather->faulty = s.faults;
  }
  double exponential(double mean) { return std::exponential_distribution<>(1 / mean)(random); }
  void trace(std::uint64_t x) { hash = (hash ^ x) * 0x100000001B3ULL; }

  scenario given;
  std::mt19937_64 random;
  std::shared_ptr<link_weather> weather;
  std::shared_ptr<fake_memory> memory;
  std::shared_ptr<weightsync::publisher_machine> publisher;
  batch_checker checker;
  version v{0};
  ledger_totals totals;
  stream_load load;
  std::string waits_for;
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  bool finished = false;
  std::string failure;
};

/// Trains nothing, takes its time, and publishes into two slots like the real one.
struct fake_worker_state {
  static inline const char* name = "train_worker";
  caf::typed_response_promise<train_result> promise;
};

void write_version(world& w, double now) {
  auto slot = w.publisher->begin(w.v, now);
  ensure(slot.has_value(), "the publisher has no free slot");
  w.memory->words.erase(w.v.value - 2); // the slot's former content is gone
  w.memory->words[w.v.value].fill(w.v.value);
  w.publisher->commit(*slot, now);
}

caf::behavior fake_worker(caf::stateful_actor<fake_worker_state>* self,
                          std::shared_ptr<world> w) {
  report_exceptions(self);
  return {
    [=](start_atom) {
      write_version(*w, now_s(self));
      return weights_published{w->v, std::to_string(w->v.value), now_s(self)};
    },
    [=](const train_batch& batch) -> caf::result<train_result> {
      ensure(batch.training_from == w->v, "a batch for another version");
      w->checker.check(batch);
      for (const auto& g : batch.groups)
        w->trace(static_cast<std::uint64_t>(g.group));
      self->state.promise = self->make_response_promise<train_result>();
      auto answer = self->state.promise;
      self->delayed_send(self, after(w->exponential(0.05)), tick_atom::value);
      return answer;
    },
    [=](tick_atom) {
      // Readers of the older slot have leases with deadlines: wait for them.
      auto now = now_s(self);
      if (auto free_at = w->publisher->blocked_until(now); free_at > now) {
        self->delayed_send(self, after(free_at - now + 0.001), tick_atom::value);
        return;
      }
      auto from = w->v;
      w->v = w->v.next();
      write_version(*w, now);
      self->state.promise.deliver(train_result{{from, w->v, {}, {}}, std::to_string(w->v.value)});
    },
    [=](save_atom, const std::string&) {},
    [=](drain_atom) {},
  };
}

caf::behavior owner_actor(caf::event_based_actor*, std::shared_ptr<world> w) {
  return {
    [=](finished_atom) { w->finished = true; },
    [=](failed_atom, const std::string& why) { w->failure = why; },
    [=](const step_report&) {},
    [=](const generator_report&) {},
  };
}

/// Builds the stream of a scenario inside a supervisor, every edge between nodes a faulty link.
class assembly {
public:
  assembly(caf::actor_system& system, std::shared_ptr<world> w) : system_(system), w_(w) {
    owner_ = system.spawn(owner_actor, w);
    auto& s = w->given;
    controller_actor_options c;
    c.controller.limits = {s.max_concurrent, s.batch_size, s.eta};
    c.controller.group_size = s.group_size;
    c.controller.max_attempts = 2 + static_cast<std::int32_t>(s.seed % 5);
    c.controller.rollout_timeout_s = 30;
    c.controller.filter_zero_variance = s.filter_zero_variance;
    c.controller.sampling.max_tokens = 64;
    c.request_timeout_s = 1;
    c.reward_timeout_s = 1;
    c.observe = [w](const rollout_controller& rc) { observe(*w, rc); };
    controller_ = system.spawn(controller_actor, c, std::make_shared<fake_feed>());
    publisher_ = system.spawn(publisher_actor<weightsync::publisher_machine>, w->publisher, 1.0,
                               "publisher");
    replay_options_.buffer.capacity = (s.eta + 1) * s.batch_size;
    replay_options_.buffer.batch_size = s.batch_size;
    replay_options_.buffer.eta = s.eta;
    replay_options_.buffer.group_size = s.group_size;
    replay_options_.buffer.over_bound = s.over_bound;
    replay_options_.request_timeout_s = 1;
    replay_options_.wait_timeout_s = 5;
    std::vector<child_spec> children;
    children.push_back({"controller", "controller", [this](auto*) { return controller_; }, true});
    children.push_back({"publisher", "publisher", [this](auto*) { return publisher_; }, true});
    children.push_back(trainer());
    for (int i = 0; i < s.generators; ++i)
      children.push_back(generator("gen" + std::to_string(i)));
    for (int i = 0; i < s.reward_workers; ++i)
      children.push_back(reward("reward" + std::to_string(i)));
    children.push_back(replay());
    supervisor_options o{.max_restarts = 100};
    o.more = [this](const std::string& kind, int index) {
      return kind == "reward" ? reward(kind + std::to_string(index))
                              : generator(kind + std::to_string(index));
    };
    supervisor_ = system.spawn(supervisor, o, children, owner_,
                               [](const std::string& e) {
                                 if (std::getenv("MILLRACE_SIMULATION_LOG") != nullptr)
                                   std::fprintf(stderr, "%s\n", e.c_str());
                               });
  }

  /// The actors that may be killed, and those that were.
  [[nodiscard]] const std::vector<caf::actor>& victims() const { return mortal_; }

  /// Ends all actors, as the system waits for them.
  void end() {
    for (const auto& a : {supervisor_, controller_, publisher_, owner_})
      caf::anon_send_exit(a, caf::exit_reason::kill);
    for (const auto& a : mortal_)
      caf::anon_send_exit(a, caf::exit_reason::kill);
    caf::anon_send_exit(trainer_, caf::exit_reason::kill);
  }

private:
  static void observe(world& w, const rollout_controller& rc) {
    auto& t = rc.totals();
    ensure(t.balanced(), "the ledger is out of balance");
    ensure(rc.load().outstanding() <= (w.given.eta + 1) * w.given.batch_size,
           "more is outstanding than (η+1)·B");
    ensure(rc.load().running <= w.given.max_concurrent, "more is running than max_concurrent");
    ensure(rc.published_version() <= w.v, "a version is known that was never published");
    w.totals = t;
    w.load = rc.load();
    w.waits_for = rc.waits_for();
  }

  caf::actor link_to(const caf::actor& target) {
    return system_.spawn(link, target, w_->weather);
  }

  caf::actor mortal(caf::actor a) {
    mortal_.push_back(a);
    return a;
  }

  child_spec generator(const std::string& name) {
    auto spawn = [this, name](caf::event_based_actor* parent) {
      auto& s = w_->given;
      generator_options o;
      o.name = name;
      o.capacity = 16;
      o.progress_every_tokens = 8;
      o.request_timeout_s = 1;
      o.receiver_thread = false;
      o.step_delay = [w = w_] { return w->exponential(0.001); };
      o.receiver.name = name + "#" + std::to_string(mortal_.size());
      o.receiver.request_timeout_s = 1;
      o.receiver.wire_delay = [w = w_] { return w->exponential(0.02); };
      auto engine = std::make_shared<fake_engine>(w_->random(), s.mean_length, 16);
      auto intake = std::make_shared<fake_intake>(
        w_->memory, engine->staging(), [w = w_] { return w->weather->chance(0.1); });
      return mortal(parent->spawn(generator_actor, o, engine, intake,
                                  generator_peers{link_to(controller_), link_to(publisher_),
                                                  owner_}));
    };
    return {name, "generator", spawn};
  }

  child_spec reward(const std::string& name) {
    return {name, "reward", [this, name](caf::event_based_actor* parent) {
              return mortal(parent->spawn(reward_actor, name, std::make_shared<fake_reward>(),
                                          link_to(controller_)));
            }};
  }

  child_spec replay() {
    auto spawn = [this](caf::event_based_actor* parent) {
      return mortal(parent->spawn(replay_actor, replay_options_, link_to(controller_),
                                  link_to(trainer_)));
    };
    return {"replay", "replay", spawn};
  }

  child_spec trainer() {
    auto spawn = [this](caf::event_based_actor* parent) {
      auto worker = parent->spawn(fake_worker, w_);
      trainer_options o;
      o.steps = w_->given.steps;
      o.request_timeout_s = 1;
      o.batch_timeout_s = 1;
      trainer_ = parent->spawn(trainer_actor, o,
                               trainer_peers{worker, link_to(controller_), link_to(publisher_),
                                             owner_, owner_});
      parent->send(trainer_, start_atom::value);
      return trainer_;
    };
    return {"trainer", "trainer", spawn, true};
  }

  caf::actor_system& system_;
  std::shared_ptr<world> w_;
  caf::actor owner_, controller_, publisher_, trainer_, supervisor_;
  replay_actor_options replay_options_;
  std::vector<caf::actor> mortal_;
};

class test_config : public caf::actor_system_config {
public:
  test_config() {
    millrace::add_message_types(*this);
    set("scheduler.policy", caf::atom("testing"));
  }
};

} // namespace

scenario scenario::from_seed(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  scenario s;
  s.seed = seed;
  s.eta = static_cast<std::int32_t>(random() % 5);
  s.group_size = 1 << (random() % 3);
  s.batch_size = s.group_size * static_cast<std::int64_t>(1 + random() % 4);
  s.max_concurrent = 1 + static_cast<std::int64_t>(random() % 40);
  s.over_bound = static_cast<millrace::over_bound>(random() % 3);
  s.filter_zero_variance = s.group_size > 1 && random() % 4 == 0;
  s.generators = 1 + static_cast<int>(random() % 3);
  s.reward_workers = 1 + static_cast<int>(random() % 3);
  s.kills = static_cast<int>(random() % 5);
  s.mean_length = 1 + static_cast<double>(random() % 30);
  return s;
}

outcome simulate(const scenario& s) {
  test_config config;
  caf::actor_system system{config};
  auto& scheduler = dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  auto w = std::make_shared<world>(s);
  assembly stream{system, w};
  struct ending {
    ~ending() {
      stream.end();
      for (int i = 0; i < 1'000'000 && (scheduler.try_run_once() || scheduler.trigger_timeout());)
        ++i;
    }
    assembly& stream;
    caf::scheduler::test_coordinator& scheduler;
  } ending{stream, scheduler};
  outcome out;
  const std::int64_t event_limit = 5'000'000;
  auto began = scheduler.clock().now();
  auto stop_faults_at = began;
  auto elapsed = [&](auto since) {
    return std::chrono::duration<double>(scheduler.clock().now() - since).count();
  };
  std::uint64_t next_kill = 200 + w->random() % 500;
  while (!w->finished && w->failure.empty()) {
    if (scheduler.jobs.empty()) {
      ensure(scheduler.trigger_timeout(), "the stream stands still: nothing is waiting");
      continue;
    }
    std::swap(scheduler.jobs.front(), scheduler.jobs[w->random() % scheduler.jobs.size()]);
    scheduler.run_once();
    if (++out.events > event_limit)
      break;
    if (w->weather->faulty && w->v.value >= s.faults_until_step) {
      w->weather->faulty = false;
      stop_faults_at = scheduler.clock().now();
    }
    if (w->weather->faulty && out.killed < s.kills
        && static_cast<std::uint64_t>(out.events) >= next_kill) {
      auto& victims = stream.victims();
      caf::anon_send_exit(victims[w->random() % victims.size()], caf::exit_reason::kill);
      ++out.killed;
      next_kill += 500 + w->random() % 2000;
    }
    ensure(elapsed(w->weather->faulty ? began : stop_faults_at) < 600,
           [&] {
             return "no end in time: stuck at " + to_string(w->v) + ", "
                    + std::to_string(w->load.running) + " running, " + std::to_string(w->load.held)
                    + " held, " + std::to_string(w->totals.count(rollout_state::buffered))
                    + " buffered; the controller waits for: " + w->waits_for;
           });
  }
  out.totals = w->totals;
  out.steps = w->v.value;
  out.trained_rollouts = w->checker.trained();
  out.staleness_max = w->checker.staleness_max();
  out.simulated_s = elapsed(began);
  w->trace(static_cast<std::uint64_t>(out.events));
  out.trace = w->hash;
  ensure(w->failure.empty(), [&] { return "the run ended: " + w->failure; });
  ensure(w->finished, "too many events");
  return out;
}

} // namespace millrace::simulation
