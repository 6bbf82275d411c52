#pragma once

#include "weightsync/socket_transport.hpp"
#include "weightsync/ucx_transport.hpp"

namespace millrace::weightsync {

/// UCX where it can reach the publisher's memory (shared memory, RDMA), sockets where it can't. UCX
/// should be told to leave TCP alone: then none of its ports is open to strangers.
class layered_transport : public transport {
public:
  layered_transport(ucx_options ucx, socket_options sockets);

  [[nodiscard]] std::string_view name() const override { return "ucx+tcp"; }
  /// Host memory can be read both ways, GPU memory by UCX alone.
  std::unique_ptr<exposed_memory> expose(std::size_t bytes, memory_kind kind) override;
  std::unique_ptr<reader> make_reader() override;

private:
  ucx_transport ucx_;
  socket_transport sockets_;
};

} // namespace millrace::weightsync
