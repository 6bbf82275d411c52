#pragma once

#include "weightsync/transport.hpp"

#include <memory>
#include <mutex>
#include <string>

namespace millrace::weightsync {

class ucx_caretaker;
class ucx_context;
class ucx_progress_thread;
class ucx_reader;

/// For ucx_options::transports: all that UCX finds except TCP. There UCX (1.13) answers reads in
/// software, and ends the whole process of the publisher ("Fatal: unexpected error: Endpoint
/// timeout") when the reader dies while it is being answered.
constexpr const char* without_tcp = "^tcp";

/// How UCX is set up. What is empty or 0 is left to UCX and its own environment variables.
struct ucx_options {
  std::string transports; ///< as UCX_TLS: "tcp", "sm,tcp", "rc,cuda", …
  std::string devices;    ///< as UCX_NET_DEVICES: "lo", "eth0", "mlx5_0:1", …
  std::size_t tcp_segment_bytes = std::size_t{1} << 20U; ///< its own default is slow for weights
};

/// Weights between processes and machines: one-sided reads of registered memory (ucp_get) over
/// whatever UCX finds: RDMA, TCP, GPU memory where this UCX was built with CUDA. Memory of a process
/// on the same machine is mapped and read without its help. Where hardware can't read by itself
/// (TCP), a thread here answers; it sleeps while nobody asks.
///
/// Errors: a peer that dies ends its reads with an error at once; one that is stopped is noticed by
/// nobody but the caller's deadline, after which reader::cancel() makes the memory safe.
class ucx_transport : public transport {
public:
  /// Throws user_error when UCX can't be started with these options.
  explicit ucx_transport(ucx_options options = {});
  ~ucx_transport() override;

  [[nodiscard]] std::string_view name() const override { return "ucx"; }
  std::unique_ptr<exposed_memory> expose(std::size_t bytes, memory_kind kind) override;
  std::unique_ptr<reader> make_reader() override;
  [[nodiscard]] bool exposes(memory_kind kind) const override { return supports(kind); }
  [[nodiscard]] bool reads_into(memory_kind kind) const override { return supports(kind); }
  std::unique_ptr<ucx_reader> make_ucx_reader();

  /// Whether this UCX, on this machine, can register such memory: asked at run time.
  [[nodiscard]] bool supports(memory_kind kind) const;

private:
  std::shared_ptr<ucx_context> context_;
  std::mutex mutex_;
  bool open_to_strangers_; ///< UCX may listen on TCP ports
  std::shared_ptr<ucx_caretaker> caretaker_;
  std::shared_ptr<ucx_progress_thread> server_; // from the first expose() on
};

} // namespace millrace::weightsync
