#include "actors/client_connection.hpp"

#include <httplib.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include <netdb.h>
#include <sys/socket.h>

namespace millrace::openai {
namespace {

/// Of one end of a socket; empty where there is none.
std::string end_of(int socket, decltype(&::getpeername) which) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (which(socket, reinterpret_cast<sockaddr*>(&at), &size) != 0
      || ::getnameinfo(reinterpret_cast<sockaddr*>(&at), size, host, sizeof host, port, sizeof port,
                       NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {};
  return std::string(host) + " " + port;
}

/// A connection's two ends name it among the process's sockets.
int find_socket(const std::string& here, const std::string& there) {
  std::error_code problem;
  for (std::filesystem::directory_iterator at("/proc/self/fd", problem), end; !problem && at != end;
       at.increment(problem)) {
    const int fd = std::atoi(at->path().filename().c_str());
    if (end_of(fd, ::getpeername) == there && end_of(fd, ::getsockname) == here)
      return fd;
  }
  return -1;
}

} // namespace

client_connection::client_connection(const httplib::Request& in)
  : socket_(find_socket(in.local_addr + " " + std::to_string(in.local_port),
                        in.remote_addr + " " + std::to_string(in.remote_port))) {}

bool client_connection::closed() const {
  char byte = 0;
  if (socket_ < 0)
    return false;
  const auto n = ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

} // namespace millrace::openai
