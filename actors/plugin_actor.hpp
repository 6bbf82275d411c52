#pragma once

#include "actors/introspection.hpp"
#include "runtime/plugins/plugin.hpp"

#include <nlohmann/json.hpp>

#include <memory>
#include <string>

namespace millrace {

struct plugin_actor_options {
  std::string name;  ///< unique in its process: "duplicates-0"
  std::string where; ///< path of its parameters in the configuration: "actors[0].params"
  nlohmann::json params;
  std::string run_directory;
  double tick_s = 1;
  double join_every_s = 5;
};

class plugin_actor_context;

/// A plugin's actor: shows it every group before the replay buffer gets it, and every step report.
/// What the plugin throws is logged and counted; a group that it threw on goes through.
///
/// Takes buffer_groups → filter_verdict; step_report; (inspect_atom). Joins the controller and the
/// recorder by itself: (filter_atom, name, actor) and (filter_atom, actor).
class plugin_actor_state {
public:
  static inline const char* name = "plugin";

  plugin_actor_state(caf::event_based_actor* self) : self_(self) {
  }
  ~plugin_actor_state();
  caf::behavior start(plugins::registered<plugin::actor_factory> made_by,
                      plugin_actor_options options, const caf::actor& controller,
                      const caf::actor& recorder);

private:
  filter_verdict judge(const buffer_groups& groups);
  void tell(const step_report& report);
  template <class Call>
  bool safely(const char* doing, Call&& call);

  caf::event_based_actor* self_;
  plugins::origin from_;
  plugin_actor_options options_;
  std::shared_ptr<plugin_actor_context> context_;
  std::unique_ptr<plugin::stream_actor> actor_;
  presence seen_;
  int errors_ = 0;
};

caf::behavior plugin_actor(caf::stateful_actor<plugin_actor_state>* self,
                           plugins::registered<plugin::actor_factory> made_by,
                           plugin_actor_options options, caf::actor controller,
                           caf::actor recorder);

/// Makes such an actor's inner part once and drops it, to see whether it takes its parameters. Its run
/// directory is a scratch folder. \throws user_error
void try_plugin_actor(const plugins::registered<plugin::actor_factory>& made_by,
                      const plugin_actor_options& options);

/// The metrics that every actor of a plugin has are declared when its kind is registered: from then
/// on the catalogue has them.
void declare_plugin_actor(const std::string& kind);

} // namespace millrace
