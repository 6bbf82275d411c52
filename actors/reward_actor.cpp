#include "actors/reward_actor.hpp"

#include "actors/shell.hpp"

namespace millrace {

caf::behavior reward_state::start(std::string worker, std::shared_ptr<const reward> judge,
                                  caf::actor controller) {
  report_exceptions(self_);
  judge_ = std::move(judge);
  insist(self_, controller, 5,
         caf::make_message(joined_atom::value, std::move(worker), caf::actor{self_}));
  return {
    [this](const score_batch& batch) {
      score_results out;
      out.scores.reserve(batch.requests.size());
      for (const auto& r : batch.requests) {
        auto v = judge_->judge(r.question, r.text, r.finish);
        out.scores.push_back({r.id, v.reward, v.correct});
      }
      return out;
    },
  };
}

caf::behavior reward_actor(caf::stateful_actor<reward_state>* self, std::string worker,
                           std::shared_ptr<const reward> judge, caf::actor controller) {
  return self->state.start(std::move(worker), std::move(judge), std::move(controller));
}

} // namespace millrace
