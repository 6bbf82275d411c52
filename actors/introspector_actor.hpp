#pragma once

#include "actors/introspection.hpp"
#include "runtime/metrics/node_tree.hpp"
#include "runtime/metrics/process.hpp"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace millrace {

struct introspector_options {
  double every_s = 1;  ///< between two questions to another node
  double answer_s = 2; ///< for it to answer; then its last answer stands, and ages
  double forget_s = 60; ///< after a node is down, until it is left out
};

/// Speaks for all actors of its process, and asks the introspectors of other nodes.
///
/// Takes
///   (inspect_atom) → std::vector<actor_snapshot>: this process. From the board, so that a busy or
///     stuck actor delays nothing.
///   (inspect_atom, all_atom) → std::vector<actor_snapshot>: all nodes, as they answered last.
///   (node_joined_atom, node's name, introspector): a node to be asked from now on.
class introspector_state {
public:
  static inline const char* name = "introspector";

  introspector_state(caf::event_based_actor* self) : self_(self) {
  }
  /// `process` is refreshed and the actors are asked for a sign of life, unless somebody else does
  /// it: then it is empty.
  caf::behavior start(introspector_options options, std::shared_ptr<node_tree> tree,
                      std::shared_ptr<process_presence> process);

private:
  struct peer {
    caf::actor handle;  ///< empty: down
    double gone_at = 0;
    bool asked = false; ///< a question is under way
  };

  void look();
  void ask(const std::string& node, peer& p);

  caf::event_based_actor* self_;
  introspector_options options_;
  std::shared_ptr<node_tree> tree_;
  std::shared_ptr<process_presence> process_;
  std::map<std::string, peer> peers_;
};

caf::behavior introspector_actor(caf::stateful_actor<introspector_state>* self,
                                 introspector_options options, std::shared_ptr<node_tree> tree,
                                 std::shared_ptr<process_presence> process);

} // namespace millrace
