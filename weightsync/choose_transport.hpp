#pragma once

#include "weightsync/transport.hpp"

#include <memory>
#include <string>
#include <vector>

namespace millrace::weightsync {

/// The ways that weights may take between processes.
struct ways {
  std::string protocols; ///< as UCX_TLS ("sm", "rc,tcp"); "tcp" means sockets; empty: all there are
  std::string devices;   ///< as UCX_NET_DEVICES; sockets listen at those that have an address
  std::vector<std::string> hosts = {"127.0.0.1"}; ///< where sockets listen, when no device says
};

/// Sockets alone for "tcp"; UCX alone where TCP isn't among the protocols, or UCX_TLS is set; else
/// UCX without its own TCP, and sockets where it has no way. Throws user_error.
std::shared_ptr<transport> choose_transport(const ways& allowed);

} // namespace millrace::weightsync
