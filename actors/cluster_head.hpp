#pragma once

#include "actors/node_link.hpp"
#include "actors/workers.hpp"
#include "runtime/metrics/node_tree.hpp"

#include <functional>
#include <memory>
#include <string>

namespace millrace {

/// The trainer's side of a cluster: the linked actor system that the stream runs in, the hub at which
/// other nodes arrive, from before the warm-up on, and the introspector that keeps their actors'
/// snapshots in `tree`.
class cluster_head {
public:
  /// Both are called on another thread: `on_stop` when somebody asks the run to end (`millrace down`),
  /// `step` when somebody asks how far it is. \throws user_error when the node can't listen
  cluster_head(const settings& options, std::shared_ptr<node_tree> tree,
               std::function<void()> on_stop, std::function<std::int64_t()> step);
  /// Lets all nodes go.
  ~cluster_head();

  [[nodiscard]] caf::actor_system& system() { return link_.system(); }
  /// What the run does at present, for nodes that wait to be let in.
  void stage(const std::string& text);
  /// The stream is up: nodes are let in from now on.
  void open(const worker_parts& parts, const stream_handles& handles, const caf::actor& supervisor);
  /// The run is over, and how: all nodes end.
  void close(const std::string& how);

private:
  linked_system link_;
  caf::actor hub_, introspector_;
};

} // namespace millrace
