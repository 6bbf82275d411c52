#pragma once

// What nodes say to each other about themselves. (The stream's own messages, which carry no handles,
// are in runtime/messages.hpp.)

#include "actors/message_types.hpp"

#include <cstdint>
#include <map>
#include <string>

namespace millrace {

using hello_atom = caf::atom_constant<caf::atom("hello")>;
using leave_atom = caf::atom_constant<caf::atom("leave")>;   ///< (name): a node goes, by its own will
using status_atom = caf::atom_constant<caf::atom("status")>; ///< → JSON text: the cluster as it is
using stop_atom = caf::atom_constant<caf::atom("stop")>;     ///< end the run after its present step

/// The machine that a process really runs on.
struct host_facts {
  std::string name;
  std::int32_t processors = 0;   ///< that it may use; 0: not known
  std::int64_t memory_bytes = 0; ///< 0: not known

  template <class I>
  friend typename I::result_type inspect(I& f, host_facts& x) {
    return f(x.name, x.processors, x.memory_bytes);
  }
};
[[nodiscard]] host_facts this_host();

/// A node → the trainer's node, when it comes up.
struct node_hello {
  std::string name;
  std::string build;  ///< build_identity()
  std::string config; ///< resolved_json of its settings
  host_facts host;
  std::int64_t pid = 0;
  caf::actor agent; ///< takes (scale_atom, kind, count) and (finished_atom, text)

  template <class I>
  friend typename I::result_type inspect(I& f, node_hello& x) {
    return f(x.name, x.build, x.config, x.host, x.pid, x.agent);
  }
};

enum class welcome_kind : std::uint8_t { welcome, wait, refused, over };

/// The trainer's node → a node: what its actors need, or why not (yet).
struct node_welcome {
  welcome_kind kind = welcome_kind::wait;
  std::string text;    ///< of all but welcome: for people
  std::string options; ///< the run's settings, with everything resolved
  std::map<std::string, std::string> model_files; ///< config.json and the tokenizer's: name → content
  caf::actor controller, publisher, recorder, trainer;
  caf::actor exact_publisher; ///< only with an old-logit node

  template <class I>
  friend typename I::result_type inspect(I& f, node_welcome& x) {
    return f(x.kind, x.text, x.options, x.model_files, x.controller, x.publisher, x.recorder,
             x.trainer, x.exact_publisher);
  }
};

/// Registers these with CAF, beside add_message_types.
void add_cluster_message_types(caf::actor_system_config& config);

} // namespace millrace
