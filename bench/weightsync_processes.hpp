#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace millrace::bench {

/// Seconds of one version's way from the trainer process to all receivers; the slowest receiver's,
/// where they differ.
struct sync_times {
  double publish_s = 0;
  double wire_s = 0;
  double verify_s = 0;
  double total_s = 0; ///< of the pull
  double pause_s = 0; ///< exchanging the two sets of tensors
};

struct sync_setup {
  std::size_t bytes = 0; ///< of the weights
  int receivers = 1;
  std::string protocols; ///< as weight_sync.protocols
  /// Memory that the trainer's and each receiver's tensors share in turn, where it can't be as much
  /// as their bytes: far more than any cache, so that what is measured stays the same.
  std::size_t parameter_bytes = 0;
  std::size_t tensor_bytes = 0;
};

/// A trainer process and some receiver processes with one model of f32 tensors in Llama's
/// proportions, by the transport that a run would take.
class weightsync_processes {
public:
  explicit weightsync_processes(const sync_setup& how);
  ~weightsync_processes();

  /// Publishes the next version and lets all receivers pull it at once. Throws when one fails.
  sync_times sync();
  /// What all receivers together reach with memcpy, at once and in their own memory.
  double memcpy_gb_s();

private:
  struct implementation;
  std::unique_ptr<implementation> impl_;
};

/// ucx_perftest's ucp_get over TCP loopback, 1 MiB each, with Millrace's settings; 0 where the
/// program isn't there.
double ucx_perftest_gb_s(int iterations);

} // namespace millrace::bench
