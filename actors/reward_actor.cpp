#include "actors/reward_actor.hpp"

#include "actors/shell.hpp"
#include "runtime/log.hpp"
#include "runtime/metrics/catalogue.hpp"
#include "runtime/readable_text.hpp"

#include <utility>

namespace millrace {

caf::behavior reward_state::start(std::string worker, std::shared_ptr<const reward> judge,
                                  caf::actor controller) {
  report_exceptions(self_);
  judge_ = std::move(judge);
  worker_ = worker;
  seen_ = {self_, "reward", worker};
  seen_.waiting("controller", "answers to judge");
  insist(self_, controller, 5,
         caf::make_message(reward_joined_atom::value, std::move(worker), caf::actor{self_}));
  return {
    [this](drain_atom) {
      draining_ = true;
      if (held_.empty())
        self_->quit(caf::exit_reason::user_shutdown);
    },
    [this](score_batch& batch) -> caf::result<score_results> {
      auto reply = self_->make_response_promise();
      held_.push_back({std::move(batch), {}, reply});
      if (held_.size() == 1)
        self_->send(self_, tick_atom::value);
      return reply;
    },
    [this](tick_atom) { judge_next(); },
    answer_introspection(seen_),
  };
}

void reward_state::judge_next() {
  auto& [asked, done, reply] = held_.front();
  seen_.working("judging");
  if (done.scores.size() < asked.requests.size())
    done.scores.push_back(judge(asked.requests[done.scores.size()]));
  if (done.scores.size() >= asked.requests.size()) {
    reply.deliver(std::move(done));
    held_.pop_front();
  }
  if (!held_.empty())
    self_->send(self_, tick_atom::value);
  else if (draining_)
    self_->quit(caf::exit_reason::user_shutdown);
  else
    seen_.waiting("controller", "answers to judge");
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
  const bool failed = !v.failure.empty();
  auto why = readable(v.failure, 1000); // of a plugin, it may be
  if (failed && !std::exchange(told_, true)) // the controller counts them, a whole message later
    log::warning("reward", worker_ + " could not judge an answer: " + why);
  m.add(metrics::answers_scored,
        failed ? "error" : !v.judged ? "not judged" : v.correct ? "correct" : "wrong", 1);
  return {r.id, v.reward, v.correct, std::move(why)};
}

caf::behavior reward_actor(caf::stateful_actor<reward_state>* self, std::string worker,
                           std::shared_ptr<const reward> judge, caf::actor controller) {
  return self->state.start(std::move(worker), std::move(judge), std::move(controller));
}

} // namespace millrace
