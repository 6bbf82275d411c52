#pragma once

#include "runtime/config/settings.hpp"

#include <caf/all.hpp>

#include <memory>
#include <string>

namespace millrace {

/// An actor system whose actors can be reached from other processes: CAF's middleman, with TLS where
/// the configuration names certificates, and heartbeats, without which a stopped or cut-off peer
/// would never be noticed.
class linked_system {
public:
  explicit linked_system(const settings& s);
  ~linked_system();

  [[nodiscard]] caf::actor_system& system();
  /// Lets other processes reach `actor` here. \throws user_error when the port is busy or the address
  /// is not this machine's
  void listen(const caf::actor& actor, const node_settings& at);
  /// The actor that is published there; blocks while the connection is made. Nothing when nobody
  /// answers, with the reason in `why`.
  caf::actor connect(const node_settings& to, std::string& why);

private:
  struct parts;
  std::unique_ptr<parts> parts_;
};

/// What both ends of a link must have in common: the program's version and its message types.
[[nodiscard]] std::string build_identity();

/// Whether this name or address is one of this machine's.
[[nodiscard]] bool is_this_host(const std::string& host);

} // namespace millrace
