#pragma once

#include "actors/introspection.hpp"

namespace millrace {

/// Message types and scheduler for an actor system that the stream runs in.
class stream_config : public caf::actor_system_config, public introspection_config {
public:
  stream_config() {
    millrace::add_message_types(*this);
    set("scheduler.policy", caf::atom("sharing"));
    set("scheduler.max-threads", std::size_t{2});
  }
};

} // namespace millrace
