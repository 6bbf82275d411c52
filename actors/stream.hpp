#pragma once

#include "actors/run_record.hpp"
#include "actors/stream_config.hpp"
#include "actors/trainer_actor.hpp"
#include "actors/workers.hpp"
#include "rollout/controller.hpp"
#include "trainer/old_logit_worker.hpp"
#include "weightsync/publisher.hpp"

#include <memory>
#include <optional>
#include <string>

namespace millrace {

/// What the stream is assembled from; everything with a model or a file in it is made by the caller.
struct stream_parts {
  worker_parts workers;
  node_actors_settings here; ///< the workers that this process runs beside the trainer
  std::shared_ptr<prompt_feed> feed;
  std::shared_ptr<weightsync::publisher> publisher;
  std::shared_ptr<weightsync::publisher> exact_publisher; ///< for an old-logit node, or empty
  std::shared_ptr<training_backend> backend;
  std::shared_ptr<trainer::old_logit_worker> old_logits; ///< for an actor beside the trainer, or empty
  std::string saved_stream; ///< the controller's state to go on from, or empty
};

/// The actors of the trainer's process, wired up: the picture of the README in code.
///
///     controller ⇄ generators, reward workers, replay ⇄ trainer → publisher → receivers
///
/// and beside them the recorder, the evaluator, and the supervisor over all. What `here` does not
/// name runs in other processes (actors/worker_node.hpp), which get the handles.
class stream {
public:
  stream(caf::actor_system& system, stream_parts parts, run_record& record);
  /// Ends all actors and waits for them.
  ~stream();

  /// Nothing while the run goes on; then empty when it came to its end, or why it could not.
  std::optional<std::string> wait(double seconds);
  /// Ends the run after the step under way.
  void drain();
  /// The ledger's sums, as JSON.
  std::string ledger();
  [[nodiscard]] const caf::actor& supervisor() const { return supervisor_; }
  /// What workers elsewhere need.
  [[nodiscard]] const stream_handles& handles() const { return handles_; }

private:
  child_spec controller_spec();
  child_spec publisher_spec();
  child_spec exact_publisher_spec();
  child_spec recorder_spec();
  child_spec trainer_spec();
  child_spec old_logit_spec();

  caf::actor_system& system_;
  stream_parts parts_;
  run_record& record_;
  caf::scoped_actor self_;
  worker_factory workers_;
  stream_handles handles_; ///< set by the supervisor's thread before the constructor returns
  caf::actor supervisor_;
};


} // namespace millrace
