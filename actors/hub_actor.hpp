#pragma once

#include "actors/cluster_messages.hpp"
#include "actors/workers.hpp"
#include "runtime/natural_order.hpp"

#include <functional>
#include <map>
#include <string>

namespace millrace {

struct hub_options {
  settings options;              ///< as this node was started with
  std::function<void()> on_stop; ///< somebody asked the run to end; called on the hub's thread
  std::function<void(const std::string&)> events;
  double remind_s = 5; ///< how often missing nodes are named
  host_facts host; ///< of the trainer's node
  std::function<std::int64_t()> step; ///< that training is at; called on the hub's thread
  caf::actor introspector; ///< learns of every node's own; may be empty
};

/// What a node needs to do its share; known once the policy is made and the stream is up.
struct hub_opening {
  std::string options; ///< resolved, with what the data decided (the alphabet)
  std::map<std::string, std::string> model_files;
  caf::actor controller, publisher, recorder, trainer, supervisor, exact_publisher;

  template <class I>
  friend typename I::result_type inspect(I& f, hub_opening& x) {
    return f(x.options, x.model_files, x.controller, x.publisher, x.recorder, x.trainer,
             x.supervisor, x.exact_publisher);
  }
};

/// The door of the trainer's node: other nodes come to it, get what they need, and are watched.
///
/// Takes: node_hello → node_welcome; (tick_atom, text): what the run does until it opens;
/// hub_opening; (node_joined_atom, name, a node's introspector); (leave_atom, name); (status_atom) →
/// JSON text; (scale_atom, kind, count) → text; (stop_atom); (finished_atom, text): tells all nodes
/// that the run is over, and lets nobody in.
class hub_state {
public:
  static inline const char* name = "hub";

  hub_state(caf::event_based_actor* self) : self_(self) {
  }
  caf::behavior start(hub_options options);

private:
  /// waiting: it is there, for a run that has not begun its training.
  enum class presence : std::uint8_t { missing, waiting, up, left, lost };
  struct member {
    node_settings declared;
    presence state = presence::missing;
    host_facts host;
    std::int64_t pid = 0;
    double since = 0;
    caf::actor agent;
    std::map<std::string, std::int64_t> counts; ///< of what can be scaled; outlives its process
  };

  node_welcome admit(const node_hello& hello);
  void note(member& m, const node_hello& hello, presence state);
  [[nodiscard]] std::string objection(const node_hello& hello) const;
  void lost(const caf::down_msg& down);
  void remind();
  void scale_node(member& m, const std::string& kind);
  caf::result<std::string> scale(const std::string& kind, std::int64_t count);
  [[nodiscard]] std::string shortages() const;
  [[nodiscard]] std::string status() const;

  caf::event_based_actor* self_;
  hub_options options_;
  std::map<std::string, member, naturally_before> members_;
  std::string stage_ = "starting";
  std::string last_refusal_, missing_; ///< as last told
  double reminded_at_ = 0;
  bool open_ = false;
  std::string over_; ///< how the run ended
  hub_opening opening_;
};

caf::behavior hub_actor(caf::stateful_actor<hub_state>* self, hub_options options);

/// Paths at which two resolved configurations differ in what nodes must agree on, with both values.
/// Empty when they agree.
[[nodiscard]] std::string config_differences(const std::string& mine, const std::string& theirs);

} // namespace millrace
