#include "weightsync/choose_transport.hpp"

#include "weightsync/layered_transport.hpp"
#include "weightsync/socket.hpp"

#include <net/if.h>

#include <cstdlib>
#include <sstream>

namespace millrace::weightsync {

namespace {

std::vector<std::string> listed(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');)
    if (!word.empty())
      out.push_back(word);
  return out;
}

socket_options sockets_for(const ways& allowed) {
  socket_options o;
  o.hosts.clear();
  for (const auto& device : listed(allowed.devices))
    if (::if_nametoindex(device.c_str()) != 0) // others are UCX's alone: mlx5_0:1
      for (auto& address : addresses_of_device(device))
        o.hosts.push_back(std::move(address));
  if (o.hosts.empty())
    o.hosts = allowed.hosts;
  return o;
}

} // namespace

std::shared_ptr<transport> choose_transport(const ways& allowed) {
  ucx_options ucx;
  ucx.devices = allowed.devices;
  bool all = allowed.protocols.empty();
  bool tcp = false;
  for (const auto& p : listed(allowed.protocols)) {
    tcp |= p == "tcp";
    if (p != "tcp")
      ucx.transports += (ucx.transports.empty() ? "" : ",") + p;
  }
  if (tcp && ucx.transports.empty())
    return std::make_shared<socket_transport>(sockets_for(allowed));
  if ((all && std::getenv("UCX_TLS") != nullptr) || (!all && !tcp))
    return std::make_shared<ucx_transport>(ucx);
  if (all)
    ucx.transports = without_tcp;
  return std::make_shared<layered_transport>(ucx, sockets_for(allowed));
}

} // namespace millrace::weightsync
