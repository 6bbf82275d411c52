#pragma once

#include "weightsync/socket_protocol.hpp"
#include "weightsync/transport.hpp"

#include <deque>
#include <map>
#include <memory>

namespace millrace::weightsync {

/// Reads by asking a socket_server; the kernel copies straight into the targets. Host memory only.
/// While one read's bytes are being proven, those of the next ones come into the socket's buffer.
class socket_reader : public reader {
public:
  socket_reader();
  ~socket_reader() override;

  void post(std::uint64_t tag, const read_request& request) override;
  /// One read at a time, so that its bytes are still in the cache when they are verified.
  std::vector<completion> poll(double wait_s) override;
  /// Closes the connections that owe something.
  void cancel() override;

private:
  struct connection;

  connection& connect(const remote_region& region);
  bool exchange(connection& c);
  bool send(connection& c);
  bool receive(connection& c);
  void fail(connection& c, const std::string& why, bool lost);
  void wait(double seconds);

  std::map<std::string, std::unique_ptr<connection>> peers_; // by remote_region::peer
  std::vector<completion> done_;
  /// Peers that could not be reached since the last poll(), and why: of a window of requests only the
  /// first waits for it.
  std::map<std::string, std::string> unreachable_;
  std::size_t turn_ = 0; // which of the peers to look at first
};

} // namespace millrace::weightsync
