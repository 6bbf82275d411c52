#pragma once

#include "actors/introspection.hpp"
#include "rollout/controller.hpp"

#include <functional>
#include <map>
#include <memory>
#include <set>

namespace millrace {

struct controller_actor_options {
  controller_options controller;
  double request_timeout_s = 5;  ///< until a message to another actor is taken as lost
  double reward_timeout_s = 10;  ///< for one answer
  std::size_t score_chunk = 32;  ///< answers per message to a reward worker
  double tick_s = 0.25;          ///< how often overdue work is looked for
  /// Called after every decision: checkers and counters look in here. Empty: nobody does.
  std::function<void(const rollout_controller&)> observe;
  /// Is told why answers can't be judged: the 10th time, the 100th, … Empty: nobody is.
  std::function<void(const std::string&)> warn;
  /// Judgings that may fail before the first that doesn't. A reward that fails now and then never comes
  /// to it; one that is broken does in seconds, or once its time-outs have added up. One that has
  /// worked may come back, whatever it fails at: that is only warned of.
  std::int64_t max_failures_at_first = 300;
  /// Is told, once, that so many did, and why the last one: nothing would be trained. May be empty.
  std::function<void(const std::string&)> give_up;
};

/// Shell of the rollout_controller: turns its actions into requests, and lost requests into events.
///
/// Takes:
/// - (generator_joined_atom, generator's name, capacity, version, actor): it is there, and samples
///   with that version from now on; (reward_joined_atom, reward worker's name, actor);
///   (replay_joined_atom, replay buffer). Whoever joins is monitored, and given up when it dies;
/// - the stream's messages;
/// - (annotate_atom, actor): that one gets a copy of each delivered group; (filter_atom, name, actor):
///   that one is asked about each group before it is delivered;
/// - (totals_atom) → std::string (JSON); (flight_atom) → in_flight_reply; in_flight_query →
///   old_logit_supply;
/// - (save_atom) → std::string (JSON); (save_atom, std::string) to go on from that; (drain_atom).
class controller_state {
public:
  static inline const char* name = "controller";

  controller_state(caf::event_based_actor* self) : self_(self) {
  }
  caf::behavior start(controller_actor_options options, std::shared_ptr<prompt_feed> feed);

private:
  struct reward_worker {
    std::string name;
    caf::actor handle;
    std::int64_t outstanding = 0; ///< answers that it owes, late ones too
    std::map<std::uint64_t, std::vector<rollout_id>> asked; ///< by question, until it answers or fails
  };

  void flush();
  void send_assignments(std::vector<controller_actions::assignment> assignments);
  void hand_out(std::size_t generator, assign_tasks tasks);
  void send_scores(std::vector<score_request> requests);
  void judged(const score& s);
  void judging_failed(rollout_id id, const std::string& reason);
  void reward_worker_lost(const caf::actor_addr& gone);
  /// Takes a question off its worker's list; false when it was off already.
  bool settle(const caf::actor& worker, std::uint64_t question);
  void ask_filters(std::vector<caf::actor> left, std::vector<scored_group> groups);
  void deliver(std::vector<scored_group> groups);
  void send_groups(std::vector<scored_group> groups);
  void add_generator(const std::string& name, std::int64_t capacity, version v,
                     const caf::actor& handle);
  void remove(const caf::actor_addr& gone);
  void show();
  [[nodiscard]] std::string totals() const;

  caf::event_based_actor* self_;
  controller_actor_options options_;
  std::shared_ptr<prompt_feed> feed_;
  std::unique_ptr<rollout_controller> controller_;
  std::vector<caf::actor> generators_; ///< by the controller's index
  std::vector<reward_worker> rewards_;
  std::uint64_t questions_ = 0; ///< asked of reward workers so far
  std::int64_t judging_failures_ = 0, next_told_failure_ = 10;
  bool judged_any_ = false;
  std::vector<score_request> unsent_scores_; ///< while no reward worker is up
  std::vector<scored_group> undelivered_;    ///< that the buffer did not confirm: sent again
  caf::actor replay_;
  std::vector<caf::actor> annotators_; ///< get a copy of each group on its way to the buffer
  std::vector<caf::actor> filters_;    ///< have a say in each group before it goes to the buffer
  std::set<std::int64_t> in_question_; ///< groups that they look at
  presence seen_;
  bool repeating_ = false; ///< groups are delivered that were counted before
};

caf::behavior controller_actor(caf::stateful_actor<controller_state>* self,
                               controller_actor_options options,
                               std::shared_ptr<prompt_feed> feed);

} // namespace millrace
