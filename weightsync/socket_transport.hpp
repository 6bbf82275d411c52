#pragma once

#include "weightsync/transport.hpp"

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::weightsync {

class socket_server;

struct socket_options {
  /// Names or addresses of this machine at which published memory can be read; others reach it by
  /// the same.
  std::vector<std::string> hosts = {"127.0.0.1"};
  double greeting_s = 5; ///< for whoever connects to prove that it belongs here
};

/// Weights between processes and machines by TCP: receivers ask, a thread of the publisher answers
/// out of the published memory, and the bytes are received where they belong, so that the only
/// copies are the kernel's two. UCX can't read one-sidedly over TCP either, copies twice more, and
/// lets everybody in; here a connection that doesn't know the manifest's secret is cut. Not
/// encrypted. Host memory only.
///
/// Errors: a peer that dies ends its reads with an error at once; one that is stopped is noticed by
/// nobody but the caller's deadline.
class socket_transport : public transport {
public:
  explicit socket_transport(socket_options options = {});
  ~socket_transport() override;

  [[nodiscard]] std::string_view name() const override { return "tcp"; }
  std::unique_ptr<exposed_memory> expose(std::size_t bytes, memory_kind kind) override;
  std::unique_ptr<reader> make_reader() override;

  /// The same for memory that another transport gave out, which is read-only for this one.
  std::unique_ptr<exposed_memory> expose_too(std::span<std::byte> memory);

private:
  std::shared_ptr<socket_server> server();

  socket_options options_;
  std::mutex mutex_;
  std::shared_ptr<socket_server> server_; // from the first expose() on
};

} // namespace millrace::weightsync
