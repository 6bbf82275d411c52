#pragma once

#include "actors/drift_watch.hpp"
#include "actors/introspection.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

/// The work behind the trainer: a real policy, or the simulator's.
class training_backend {
public:
  virtual ~training_backend() = default;
  /// The version that can be pulled now, published on the first call.
  virtual weights_published publish_current() = 0;
  /// One step from batch.training_from; the next version is published when it returns.
  virtual train_result train(const train_batch& batch) = 0;
  /// Writes a checkpoint of the current version, or begins to; `stream` is the controller's state.
  virtual void save(const std::string& stream) = 0;
  /// Until all that was saved is on disk. \throws what a write failed with
  virtual void finish_saving() = 0;
};

/// Runs a training_backend on a thread of its own, so that the trainer itself is never deaf.
/// Takes train_batch → train_result; (start_atom) → weights_published; (save_atom, stream);
/// (drain_atom): when all that was saved is on disk.
struct training_worker_state {
  static inline const char* name = "train_worker";
  std::shared_ptr<training_backend> backend;
  presence seen;
};

caf::behavior training_worker(caf::stateful_actor<training_worker_state>* self,
                              std::shared_ptr<training_backend> backend);

struct trainer_options {
  std::int32_t steps = 1;            ///< the run ends when this version is published
  std::int32_t eta = 0;              ///< shown beside the staleness
  std::int32_t checkpoint_every = 0; ///< steps; 0: only at the end
  double request_timeout_s = 5;
  double batch_timeout_s = 5;   ///< then the batch is asked for again (the same one comes)
  /// What "dedicated" waits for an old-logit node, beside request_timeout_s.
  double old_logits_wait_s = 0;
  /// Old log-probs need more than the batch: "interrupt" what is in flight, with tokens of versions
  /// back to so many before the current one.
  std::optional<std::int32_t> in_flight_versions;
  double step_timeout_s = 3600; ///< a step that takes longer ends the run
};

struct trainer_peers {
  caf::actor worker, controller, publisher, recorder;
  caf::actor owner; ///< gets (finished_atom) when the last step is published and saved
  caf::actor exact_publisher = {}; ///< is told of the weights in full precision; may be empty
};

/// The trainer's course: ask for a batch → train → publish → tell → (checkpoint) → again. It asks
/// for the batch of version v + 1 only after the controller has noted v + 1.
///
/// Takes (start_atom), (replay_joined_atom, replay buffer) at its start and restarts, (annotate_atom,
/// old-logit actor) likewise, (drain_atom): stop after the step under way.
///
/// Before a step it asks for what the old log-probs need beside the batch (old_logit_supply): the
/// controller for what is in flight, or the old-logit actor for what it has computed. Without an
/// answer the step goes on without, and the training side does what it can.
class trainer_state {
public:
  static inline const char* name = "trainer";

  trainer_state(caf::event_based_actor* self) : self_(self) {
  }
  caf::behavior start(trainer_options options, trainer_peers peers);

private:
  void publish_first();
  void ask_for_batch();
  void received(const train_batch& batch);
  void finish_saving();
  void supply_and_train(train_batch batch, double waited);
  /// Asks the old-logit actor, a second time with groups that it lacks.
  void ask_annotator(const old_logit_question& question,
                     const std::shared_ptr<const train_batch>& batch,
                     const std::function<void(old_logit_supply*)>& go_on);
  void set_annotator(const caf::actor& annotator);
  void train(const train_batch& batch, double waited);
  void publish(weights_published p);
  void tell_controller(const weights_published& p);
  void published();
  void checkpoint(bool last);
  void fail(const std::string& what, const caf::error& e);
  void show(const train_batch& batch);
  void show(const step_report& report, double waited);

  caf::event_based_actor* self_;
  trainer_options options_;
  trainer_peers peers_;
  drift_watch drift_;
  version v_{0};
  presence seen_;
  double asked_at_ = 0;
  double shown_at_ = 0; ///< the end of the last step
  caf::actor annotator_; ///< the old-logit actor, where there is one
  std::function<void()> without_supply_; ///< ends the wait for one; empty: nothing is waited for
  std::vector<caf::actor> replays_; ///< that joined and aren't known to be dead, newest last
  bool draining_ = false;
  bool waits_for_replay_ = false;
};

caf::behavior trainer_actor(caf::stateful_actor<trainer_state>* self, trainer_options options,
                            trainer_peers peers);

} // namespace millrace
