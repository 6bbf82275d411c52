#include "bench/benchmarks.hpp"

#include "actors/controller_actor.hpp"
#include "actors/replay_actor.hpp"
#include "actors/reward_actor.hpp"
#include "actors/shell.hpp"
#include "actors/stream.hpp"
#include "actors/training_run.hpp"
#include "bench/instruments.hpp"
#include "runtime/run_directory.hpp"
#include "runtime/scratch_folder.hpp"

#include <map>
#include <unistd.h>

namespace millrace::bench {

namespace {

// -- the stream alone: nothing is generated, nothing is trained -----------------------------------

class counting_feed : public prompt_feed {
public:
  fed_prompt next() override {
    auto id = next_++;
    return {{id, "what is 2 + 2?", "4"}, {1, 2, 3, 4, 5, 6, 7, 8}};
  }
  [[nodiscard]] nlohmann::json cursor() const override { return next_; }
  void seek(const nlohmann::json& cursor) override { next_ = cursor.get<std::int64_t>(); }

private:
  std::int64_t next_ = 0;
};

/// Answers every task at once with 16 tokens.
struct instant_generator_state {
  static inline const char* name = "instant_generator";
  std::int32_t v = 0;
};

caf::behavior instant_generator(caf::stateful_actor<instant_generator_state>* self,
                                caf::actor controller, std::int64_t capacity) {
  report_exceptions(self);
  self->send(controller, generator_joined_atom::value, std::string("generator-0"), capacity, version{0},
             caf::actor{self});
  return {
    [=](assign_tasks& tasks) {
      rollouts_finished done;
      done.rollouts.reserve(tasks.tasks.size());
      for (auto& t : tasks.tasks) {
        auto& r = t.so_far;
        for (std::int32_t i = 0; i < 16; ++i) {
          r.tokens.push_back(i);
          r.behaviour_logp.push_back(-1);
          r.versions.push_back(self->state.v);
        }
        r.text = "4";
        r.finish = finish_reason::stop;
        done.rollouts.push_back(std::move(r));
      }
      self->send(controller, std::move(done));
    },
    [](const cancel_rollouts&) {},
    [=](const weights_published& p) {
      self->state.v = p.v.value;
      self->send(controller, generator_joined_atom::value, std::string("generator-0"), capacity, p.v,
                 caf::actor{self});
    },
  };
}

struct instant_trainer_state {
  static inline const char* name = "instant_trainer";
  version v{0};
  std::int64_t rollouts = 0;
};

/// Takes batches as fast as they come.
caf::behavior instant_trainer(caf::stateful_actor<instant_trainer_state>* self, caf::actor replay,
                              caf::actor controller, caf::actor generator, std::int32_t steps,
                              caf::actor owner) {
  report_exceptions(self);
  return {
    [=](start_atom) {
      self->request(replay, within(60), batch_request{self->state.v})
        .then([=](const train_batch& b) {
          for (const auto& g : b.groups)
            self->state.rollouts += static_cast<std::int64_t>(g.rollouts.size());
          self->state.v = self->state.v.next();
          weights_published p{self->state.v, {}, 0};
          self->request(controller, within(60), p).then([=] {
            self->send(generator, p);
            if (self->state.v.value >= steps)
              self->send(owner, self->state.rollouts);
            else
              self->send(self, start_atom::value);
          });
        });
    },
  };
}

class exact_four : public reward {
public:
  [[nodiscard]] verdict judge(const prompt& p, std::string_view text,
                              finish_reason) const override {
    auto right = text == p.answer;
    return {right ? 1.0F : 0.0F, right};
  }
};

/// Rollouts per second, all actors on one core.
double actors_rate(std::int32_t steps) {
  constexpr std::int64_t batch = 1024;
  stream_config config;
  config.set("scheduler.max-threads", std::size_t{1});
  caf::actor_system system{config};
  caf::scoped_actor self{system};
  controller_actor_options c;
  c.controller.limits = {100'000, batch, 2};
  c.controller.group_size = 8;
  c.controller.sampling.max_tokens = 16;
  c.score_chunk = 256;
  auto controller = system.spawn(controller_actor, c, std::make_shared<counting_feed>());
  replay_actor_options r;
  r.buffer.capacity = 3 * batch;
  r.buffer.batch_size = batch;
  r.buffer.group_size = 8;
  r.buffer.eta = 2;
  auto replay = system.spawn(replay_actor, r, controller, caf::actor{});
  auto judge = system.spawn(reward_actor, "reward-0", std::make_shared<exact_four>(), controller);
  auto generator = system.spawn(instant_generator, controller, 100'000);
  auto trainer = system.spawn(instant_trainer, replay, controller, generator, steps,
                              caf::actor{self});
  std::int64_t rollouts = 0;
  auto took = seconds([&] {
    caf::anon_send(trainer, start_atom::value);
    self->receive([&](std::int64_t n) { rollouts = n; });
  });
  for (const auto& a : {controller, replay, judge, generator, trainer})
    caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
  return static_cast<double>(rollouts) / took;
}

// -- asynchronous against synchronous --------------------------------------------------------------

/// A model that was never trained ends an answer with the probability of one token in its
/// vocabulary: lengths are geometric, a few very long. Rewards are all 0, so it stays like that.
settings long_tailed(std::int32_t eta, std::int32_t steps) {
  settings s;
  s.seed = 7;
  s.run.steps = steps;
  s.run.log_every = 1000;
  s.model.architecture = {.layers = 2, .hidden = 96, .heads = 4, .kv_heads = 2,
                          .intermediate = 256, .max_positions = 448};
  s.data.held_out = 8;
  s.data.arithmetic.max_operand = 20;
  s.rollout = {.eta = eta, .batch_size = 32, .group_size = 8, .max_concurrent = 128};
  s.sampling.max_tokens = 400;
  s.generator.max_batch = 128;
  s.eval.prompts = 1;
  s.reward.kind = "exact";
  s.log.level = log_level::error;
  return s;
}

/// Trained tokens per second between the third step and the last.
double trained_rate(std::int32_t eta, std::int32_t steps) {
  scratch_folder folder("millrace-bench");
  run_training({.options = long_tailed(eta, steps), .directory = folder.path() / "run", .quiet = true});
  double tokens = 0, from = 0, to = 0;
  for (const auto& line : read_metrics(folder.path() / "run" / "metrics.jsonl")) {
    if (line.value("kind", "") != "step")
      continue;
    if (line["step"] == 3)
      from = line["time_s"];
    if (line["step"] > 3) {
      tokens += line["trained_tokens"].get<double>();
      to = line["time_s"];
    }
  }
  return tokens / (to - from);
}

} // namespace

measurements stream(const options& how) {
  measurements out;
  note("controller, reward and replay on one core, with a fake generator and trainer");
  use_cores(1);
  std::vector<double> rates;
  for (int i = 0; i < (how.quick ? 1 : 5); ++i)
    rates.push_back(actors_rate(how.quick ? 10 : 100));
  use_cores(sysconf(_SC_NPROCESSORS_ONLN));
  out.push_back({"controller + reward + replay, one core", median(rates), "rollouts/s", "", {},
                 100'000});
  const int rounds = how.quick ? 1 : 3;
  std::map<std::int32_t, std::vector<double>> by_eta;
  for (int round = 1; round <= rounds; ++round)
    for (std::int32_t eta : {0, 1, 2, 4}) {
      note("long-tailed answers, η = " + std::to_string(eta) + ", round "
           + std::to_string(round) + " of " + std::to_string(rounds));
      by_eta[eta].push_back(trained_rate(eta, how.quick ? 6 : 32));
    }
  auto synchronous = median(by_eta[0]);
  for (const auto& [eta, values] : by_eta) {
    measurement m{"trained on long-tailed answers, η = " + std::to_string(eta), median(values),
                  "tokens/s"};
    if (eta > 0) {
      m.against = "η = 0";
      m.ratio = m.value / synchronous;
    }
    if (eta == 4)
      m.bar = 1.5;
    out.push_back(m);
  }
  return out;
}

} // namespace millrace::bench
