#pragma once

#include "actors/http_message.hpp"

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace millrace {

/// What a stranger can take of the process at most.
struct http_limits {
  std::size_t connections = 64;  ///< beyond that, the one that has been idle longest must go
  std::size_t head_bytes = 8192; ///< of a request
  double request_s = 3;          ///< for a request to come in whole, once it has begun or connected
  double answer_s = 10;          ///< for an answer to be taken
  double idle_s = 30;            ///< between two requests of one connection
};

/// A small HTTP server on a thread of its own. One thread, no queue: a connection costs one file
/// descriptor and what it sent so far, and has a deadline in every state, so neither half-open nor
/// slow nor very many connections keep a good one waiting.
class http_server {
public:
  /// Called on the server's thread, one at a time; an exception becomes status 500.
  using handler = std::function<http_response(const http_request&)>;
  /// A connection was closed without an answer: "garbage", "too slow", "too many", "gone".
  using on_drop = std::function<void(std::string_view reason)>;

  /// `host` is an address or a name; port 0 takes a free one.
  /// \throws user_error when the address can't be had
  http_server(const std::string& host, int port, handler answer, on_drop dropped,
              http_limits limits = {});
  ~http_server();
  http_server(const http_server&) = delete;
  http_server& operator=(const http_server&) = delete;

  [[nodiscard]] int port() const;
  /// Connections that are open now.
  [[nodiscard]] std::size_t open() const;

private:
  struct implementation;
  std::unique_ptr<implementation> impl_;
};

} // namespace millrace
