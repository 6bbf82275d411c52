#include "weightsync/socket.hpp"

#include "runtime/error.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

namespace millrace::weightsync {

namespace {

using address_list = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

address_list resolve(const std::string& host, std::uint16_t port, bool passive) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  auto status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0)
    throw user_error("weight_sync: the host " + host + " is not known: " + ::gai_strerror(status));
  return {found, &freeaddrinfo};
}

descriptor new_socket(const addrinfo& a) {
  return descriptor(::socket(a.ai_family, a.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a.ai_protocol));
}

// 0, or what went wrong.
int finish_connecting(int fd, std::chrono::milliseconds patience) {
  pollfd p{fd, POLLOUT, 0};
  auto n = ::poll(&p, 1, static_cast<int>(patience.count()));
  if (n <= 0)
    return n == 0 ? ETIMEDOUT : errno;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

} // namespace

void descriptor::reset() {
  if (fd_ >= 0)
    ::close(std::exchange(fd_, -1));
}

descriptor listen_at(const std::string& host, endpoint& at) {
  auto addresses = resolve(host, 0, true);
  int error = 0;
  for (auto* a = addresses.get(); a != nullptr; a = a->ai_next) {
    auto fd = new_socket(*a);
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    if (!fd || ::bind(fd.get(), a->ai_addr, a->ai_addrlen) != 0 || ::listen(fd.get(), 1024) != 0
        || ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
      error = errno;
      continue;
    }
    auto port = bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(bound).sin_port;
    at = {host, ntohs(port)};
    return fd;
  }
  throw user_error("weight_sync: can't listen at " + host + ": " + std::strerror(error)
                   + "; set weight_sync.devices, or the node's host, to an address of this machine");
}

descriptor connect_to(const endpoint& to, std::chrono::milliseconds patience) {
  auto addresses = resolve(to.host, to.port, false);
  int error = 0;
  for (auto* a = addresses.get(); a != nullptr; a = a->ai_next) {
    auto fd = new_socket(*a);
    if (!fd) {
      error = errno;
      continue;
    }
    error = ::connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS)
      error = finish_connecting(fd.get(), patience);
    if (error != 0)
      continue;
    int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
  }
  throw std::system_error(error, std::generic_category());
}

std::vector<std::string> addresses_of_device(const std::string& device) {
  ifaddrs* list = nullptr;
  std::vector<std::string> found;
  if (::getifaddrs(&list) != 0)
    throw user_error(std::string("weight_sync.devices: the network devices can't be listed: ")
                     + std::strerror(errno));
  std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (auto* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || device != i->ifa_name)
      continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (i->ifa_addr->sa_family == AF_INET)
      ::inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(i->ifa_addr)->sin_addr, text, sizeof text);
    auto* six = reinterpret_cast<sockaddr_in6*>(i->ifa_addr);
    // A link-local address means nothing without a scope.
    if (i->ifa_addr->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr))
      ::inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof text);
    if (text[0] != 0)
      found.emplace_back(text);
  }
  if (found.empty())
    throw user_error("weight_sync.devices: the network device \"" + device
                     + "\" has no address on this machine; `ip address` lists those there are");
  return found;
}

} // namespace millrace::weightsync
