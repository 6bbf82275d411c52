#pragma once

#include <caf/all.hpp>

#include <map>
#include <memory>
#include <random>

namespace millrace::simulation {

/// What a link between two nodes does to messages, with probabilities. `faulty` is shared by all
/// links of a run and turned off when the faults are to stop.
struct link_weather {
  std::mt19937_64 random;
  bool faulty = true;
  double drop = 0.02;
  double duplicate = 0.02;
  double lose_answer = 0.02; ///< the message arrives, its answer does not
  double delay_mean_s = 0.002;

  bool chance(double p) {
    return faulty && std::uniform_real_distribution<>(0, 1)(random) < p;
  }
  double delay() { return std::exponential_distribution<>(1 / delay_mean_s)(random); }
};

/// A stand-in for `target` on another node: passes messages on late, twice, or not at all. Handles
/// of other actors inside messages become stand-ins too. Dies with its target.
class link_state {
public:
  static inline const char* name = "link";
  link_state(caf::event_based_actor* self) : self_(self) {
  }
  caf::behavior start(caf::actor target, std::shared_ptr<link_weather> weather);

private:
  void pass(caf::message content);
  void deliver(const caf::message& content, bool answerable, caf::message_id mid);

  caf::event_based_actor* self_;
  caf::actor target_;
  std::shared_ptr<link_weather> weather_;
  std::map<caf::actor_id, caf::actor> wrapped_;
};

caf::behavior link(caf::stateful_actor<link_state>* self, caf::actor target,
                   std::shared_ptr<link_weather> weather);

} // namespace millrace::simulation
