#pragma once

#include "actors/evaluation.hpp"
#include "actors/run_record.hpp"
#include "actors/supervisor.hpp"
#include "actors/trainer_actor.hpp"
#include "rollout/controller.hpp"
#include "weightsync/local_transport.hpp"
#include "weightsync/publisher.hpp"

#include <memory>
#include <optional>
#include <string>

namespace millrace {

/// What the stream is assembled from; everything with a model or a file in it is made by the caller.
struct stream_parts {
  settings options;
  model::model_config model;
  std::shared_ptr<const model::tokenizer> tokens;
  std::shared_ptr<prompt_feed> feed;
  std::shared_ptr<const prompt_source> prompts; ///< for evaluations on the way
  std::shared_ptr<const reward> judge;
  std::shared_ptr<weightsync::transport> carrier;
  std::shared_ptr<weightsync::publisher> publisher;
  std::shared_ptr<training_backend> backend;
  std::string saved_stream; ///< the controller's state to go on from, or empty
};

/// The actors of a run in one process, wired up: the picture of the README in code.
///
///     controller ⇄ generators, reward workers, replay ⇄ trainer → publisher → receivers
///
/// and beside them the recorder, the evaluator, and the supervisor over all.
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

private:
  child_spec controller_spec();
  child_spec publisher_spec();
  child_spec recorder_spec();
  child_spec generator_spec(int index);
  child_spec reward_spec(int index);
  child_spec replay_spec();
  child_spec trainer_spec();
  child_spec evaluator_spec();

  caf::actor_system& system_;
  stream_parts parts_;
  run_record& record_;
  caf::scoped_actor self_;
  int lives_ = 0; ///< generators and evaluators started; used by the supervisor's thread
  caf::actor controller_, publisher_, recorder_, replay_, trainer_, supervisor_;
};

/// Message types and scheduler for the stream's actor system.
class stream_config : public caf::actor_system_config {
public:
  stream_config();
};

/// Seconds on the clock that all actors of this process use.
double stream_now();

} // namespace millrace
