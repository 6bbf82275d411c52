#pragma once

#include "actors/introspection.hpp"
#include "rollout/reward.hpp"

#include <memory>
#include <string>

namespace millrace {

/// A reward worker: judges answers, several of these in parallel. Joins the stream by itself.
/// Takes score_batch → score_results. The time-out is the controller's.
class reward_state {
public:
  static inline const char* name = "reward";

  reward_state(caf::event_based_actor* self) : self_(self) {
  }
  caf::behavior start(std::string worker, std::shared_ptr<const reward> judge,
                      caf::actor controller);

private:
  score judge(const score_request& r);

  caf::event_based_actor* self_;
  std::shared_ptr<const reward> judge_;
  presence seen_;
};

caf::behavior reward_actor(caf::stateful_actor<reward_state>* self, std::string worker,
                           std::shared_ptr<const reward> judge, caf::actor controller);

} // namespace millrace
