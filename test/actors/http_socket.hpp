#pragma once
#include "test/patience.hpp"

// A connection to a server on this machine, for tests: sends what it is told to, right or wrong.

#include <catch2/catch.hpp>

#include <cstdlib>
#include <cstring>
#include <string>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

namespace millrace::test {

class http_socket {
public:
  struct answer {
    int status = 0;
    std::string head, body;
  };

  explicit http_socket(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<std::uint16_t>(port));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{test::patience.count(), 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    REQUIRE(::connect(fd_, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
  }
  ~http_socket() { ::close(fd_); }
  http_socket(const http_socket&) = delete;
  http_socket& operator=(const http_socket&) = delete;

  void send(const std::string& bytes) { (void) !::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }

  std::string receive_head() {
    std::size_t end = 0;
    while ((end = in_.find("\r\n\r\n")) == std::string::npos)
      if (!more())
        return {};
    auto head = in_.substr(0, end);
    in_.erase(0, end + 4);
    return head;
  }

  answer receive() {
    answer out;
    out.head = receive_head();
    if (out.head.size() < 12)
      return out;
    out.status = std::atoi(out.head.c_str() + 9);
    auto at = out.head.find("Content-Length: ");
    auto size = at == std::string::npos ? 0 : std::strtoull(out.head.c_str() + at + 16, nullptr, 10);
    while (in_.size() < size && more()) {
    }
    out.body = in_.substr(0, size);
    in_.erase(0, out.body.size());
    return out;
  }

  answer get(const std::string& path, const std::string& headers = {}) {
    send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
    return receive();
  }

  /// Waits until the other side closes.
  bool closed() {
    while (more()) {
    }
    return ended_;
  }

private:
  bool more() {
    char bytes[65536];
    auto n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n > 0)
      in_.append(bytes, static_cast<std::size_t>(n));
    ended_ = n == 0 || (n < 0 && errno == ECONNRESET);
    return n > 0;
  }

  int fd_;
  bool ended_ = false;
  std::string in_;
};

} // namespace millrace::test
