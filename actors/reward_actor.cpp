#include "actors/reward_actor.hpp"

#include "actors/shell.hpp"
#include "runtime/metrics/catalogue.hpp"

namespace millrace {

caf::behavior reward_state::start(std::string worker, std::shared_ptr<const reward> judge,
                                  caf::actor controller) {
  report_exceptions(self_);
  judge_ = std::move(judge);
  seen_ = {self_, "reward", worker};
  seen_.waiting("controller", "answers to judge");
  insist(self_, controller, 5,
         caf::make_message(reward_joined_atom::value, std::move(worker), caf::actor{self_}));
  return {
    [this](drain_atom) { self_->quit(caf::exit_reason::user_shutdown); }, // it holds no work
    [this](const score_batch& batch) {
      score_results out;
      out.scores.reserve(batch.requests.size());
      seen_.working("judging");
      for (const auto& r : batch.requests)
        out.scores.push_back(this->judge(r));
      seen_.waiting("controller", "answers to judge");
      return out;
    },
    answer_introspection(seen_),
  };
}

score reward_state::judge(const score_request& r) {
  auto& m = seen_.metrics();
  auto began = now_s(self_);
  verdict v;
  try {
    v = judge_->judge(r.question, r.text, r.finish);
  } catch (...) {
    m.add(metrics::answers_scored, "error", 1);
    throw;
  }
  auto took = now_s(self_) - began;
  m.observe(metrics::score_latency, took);
  m.add(metrics::reward_busy, took);
  m.add(metrics::answers_scored,
        !v.failure.empty() ? "error" : !v.judged ? "not judged" : v.correct ? "correct" : "wrong", 1);
  return {r.id, v.reward, v.correct, v.failure};
}

caf::behavior reward_actor(caf::stateful_actor<reward_state>* self, std::string worker,
                           std::shared_ptr<const reward> judge, caf::actor controller) {
  return self->state.start(std::move(worker), std::move(judge), std::move(controller));
}

} // namespace millrace
