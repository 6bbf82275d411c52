#include "actors/silent_strangers.hpp"

#include <linux/tcp.h>

#include <chrono>
#include <filesystem>
#include <netinet/in.h>
#include <set>
#include <sys/socket.h>

namespace millrace {

namespace {

/// Less than any greeting: a node's handshake is longer, TLS or not.
constexpr std::uint64_t greeting_bytes = 32;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::uint16_t local_port(int fd) {
  sockaddr_storage a{};
  socklen_t size = sizeof a;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&a), &size) != 0)
    return 0;
  if (a.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in&>(a).sin_port);
  if (a.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(a).sin6_port);
  return 0;
}

/// Whether this descriptor is a connection to the port from which hardly anything has come.
bool is_silent(int fd, std::uint16_t port) {
  if (local_port(fd) != port)
    return false;
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
    return false;
  constexpr std::uint8_t established = 1;
  return info.tcpi_state == established && info.tcpi_bytes_received < greeting_bytes;
}

} // namespace

silent_strangers::silent_strangers(std::uint16_t port, double patience_s,
                                   std::function<void(int)> closed)
  : port_(port), patience_s_(patience_s), closed_(std::move(closed)), thread_([this] {
      for (int tenths = 1; !ending_; ++tenths) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        if (tenths % 10 == 0)
          look();
      }
    }) {
}

silent_strangers::~silent_strangers() {
  ending_ = true;
  thread_.join();
}

void silent_strangers::look() {
  std::set<int> silent;
  std::error_code failed;
  for (std::filesystem::directory_iterator fd("/proc/self/fd", failed), end; !failed && fd != end;
       fd.increment(failed))
    if (const auto n = std::atoi(fd->path().filename().c_str()); is_silent(n, port_))
      silent.insert(n);
  std::erase_if(silent_since_, [&](const auto& entry) { return !silent.contains(entry.first); });
  int closed = 0;
  for (auto fd : silent) {
    const auto since = silent_since_.try_emplace(fd, now()).first->second;
    if (now() < since + patience_s_)
      continue;
    shutdown(fd, SHUT_RDWR); // its owner sees the end of it, and closes it
    ++closed;
  }
  if (closed > 0)
    closed_(closed);
}

} // namespace millrace
