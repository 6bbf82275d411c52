#pragma once

#include "actors/supervisor.hpp"
#include "rollout/prompt_source.hpp"
#include "rollout/reward.hpp"
#include "runtime/config/settings.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/model/tokenizer.hpp"
#include "weightsync/transport.hpp"

#include <caf/all.hpp>

#include <memory>
#include <string>

namespace millrace {

/// What the actors that do the work beside the trainer need, in any process.
struct worker_parts {
  settings options;
  model::model_config model;
  std::shared_ptr<const model::tokenizer> tokens;
  std::shared_ptr<const reward> judge;
  std::shared_ptr<const prompt_source> prompts; ///< for the evaluator; may be empty where there is none
  std::shared_ptr<weightsync::transport> carrier;
  std::string run_directory; ///< for plugins' actors; empty where there are none
  compute_device evaluator_device = compute_device::cpu;
  std::string node; ///< put before the actors' names, "gen0/generator-1"; empty in a single process
};

/// The actors of the trainer's node that all others speak to.
struct stream_handles {
  caf::actor controller, publisher, recorder, trainer;
  caf::actor exact_publisher; ///< of the weights in full precision; only with an old-logit node
};

/// What a process with these actors evaluates on: the generators' device where it has any, else the
/// trainer's where it has that, else the CPU. Nothing says that another host has either.
compute_device evaluator_device(const settings& s, const node_actors_settings& here);

/// Whether all that fetches the generators' weights, in any process, does so into GPU memory.
bool receivers_on_gpus(const settings& s);

/// How to start generators, reward workers, the replay buffer, the evaluator and the old-logit actor of
/// one process. They join the stream by themselves, wherever they are.
class worker_factory {
public:
  explicit worker_factory(worker_parts parts) : parts_(std::move(parts)) {
  }

  /// `peers` is read when the child starts.
  child_spec generator(int index, const stream_handles& peers);
  child_spec reward(int index, const stream_handles& peers);
  child_spec replay(const stream_handles& peers);
  child_spec evaluator(const stream_handles& peers);
  /// On a node of its own; in the trainer's process the stream has it.
  child_spec old_logits(const stream_handles& peers);
  /// Those of plugins, as the configuration lists them.
  std::vector<child_spec> plugin_actors(const stream_handles& peers);
  /// One more generator or reward worker.
  child_spec more(const std::string& kind, int index, const stream_handles& peers);
  /// All of those that a node runs; replay first, so that it is there when answers come.
  std::vector<child_spec> all(const node_actors_settings& counts, const stream_handles& peers);

private:
  [[nodiscard]] std::string name_of(const std::string& kind, int index) const;
  std::string fresh_receiver_name(const std::string& name);

  worker_parts parts_;
  int lives_ = 0; ///< receivers started; used by the supervisor's thread
};

/// The transport that weights take between these processes.
std::shared_ptr<weightsync::transport> make_transport(const settings& s);

/// Seconds on the clock that all actors of this process use.
double stream_now();

} // namespace millrace
