#pragma once

#include "actors/introspection.hpp"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace millrace {

/// How to start one child, and what its death means.
struct child_spec {
  std::string name;
  std::string kind; ///< "generator", "reward", …: what can be scaled
  std::function<caf::actor(caf::event_based_actor* parent)> spawn;
  bool essential = false; ///< its death ends the run; others are started again, and join by themselves
};

struct supervisor_options {
  std::int32_t max_restarts = 5; ///< of one child
  double restart_delay_s = 0.1;  ///< doubled each time
  /// Makes further children of a kind; empty where nothing is scaled.
  std::function<child_spec(const std::string& kind, int index)> more;
};

/// Watches all actors of the stream. A dead generator, reward worker or replay buffer is started
/// again; a dead trainer or controller, or a child beyond its restarts, ends the run.
///
/// Sends to `owner`: (failed_atom, text) when the run can't go on. Calls `events` with every death and
/// restart as text. Takes (drain_atom): ends all children.
/// Answers (inspect_atom, name) with the child's present handle, and (scale_atom, kind, count) with
/// the former count when so many children of that kind run, or are about to: those beyond it are told
/// to hand their work back, and end.
class supervisor_state {
public:
  static inline const char* name = "supervisor";

  supervisor_state(caf::event_based_actor* self) : self_(self) {
  }
  caf::behavior start(supervisor_options options, std::vector<child_spec> children,
                      caf::actor owner, std::function<void(const std::string&)> events);

private:
  struct child {
    child_spec spec;
    caf::actor handle;
    std::int32_t restarts = 0;
    bool retiring = false; ///< its death is wanted
  };

  void launch(std::size_t i);
  caf::result<std::int64_t> scale(const std::string& kind, std::int64_t count);
  void lost(const caf::down_msg& down);
  void quit_when_alone();

  caf::event_based_actor* self_;
  supervisor_options options_;
  std::vector<child> children_;
  std::shared_ptr<std::map<std::size_t, caf::actor>> living_
    = std::make_shared<std::map<std::size_t, caf::actor>>();
  caf::actor owner_;
  std::function<void(const std::string&)> events_;
  presence seen_;
  bool ending_ = false;
};

caf::behavior supervisor(caf::stateful_actor<supervisor_state>* self, supervisor_options options,
                         std::vector<child_spec> children, caf::actor owner,
                         std::function<void(const std::string&)> events);

} // namespace millrace
