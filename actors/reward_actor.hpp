#pragma once

#include "actors/introspection.hpp"
#include "rollout/reward.hpp"

#include <deque>
#include <memory>
#include <string>

namespace millrace {

/// A reward worker: judges answers, several of these in parallel. Joins the stream by itself.
/// Takes score_batch → score_results. The time-out is the controller's. Between two answers it reads
/// its messages: the end of a run waits for the answer under way, not for all that were sent.
class reward_state {
public:
  static inline const char* name = "reward";

  reward_state(caf::event_based_actor* self) : self_(self) {
  }
  caf::behavior start(std::string worker, std::shared_ptr<const reward> judge,
                      caf::actor controller);

private:
  struct held_batch {
    score_batch asked;
    score_results done;
    caf::response_promise reply;
  };
  void judge_next();
  score judge(const score_request& r);

  caf::event_based_actor* self_;
  std::string worker_;
  std::shared_ptr<const reward> judge_;
  bool told_ = false; ///< of its first failure
  std::deque<held_batch> held_;
  bool draining_ = false; ///< it ends when it holds nothing more
  presence seen_;
};

caf::behavior reward_actor(caf::stateful_actor<reward_state>* self, std::string worker,
                           std::shared_ptr<const reward> judge, caf::actor controller);

} // namespace millrace
