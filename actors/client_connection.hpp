#pragma once

namespace httplib {
struct Request;
}

namespace millrace::openai {

/// The connection that a request came by, while its handler runs. The library tells only those who
/// write in pieces whether the client is still there, after the status is out; a handler that works
/// for long before it knows the status asks here.
class client_connection {
public:
  explicit client_connection(const httplib::Request& in);

  /// Whether the client has closed it. False where that can't be told.
  [[nodiscard]] bool closed() const;

private:
  int socket_; ///< the library's, which closes it after the handler; −1: not found
};

} // namespace millrace::openai
