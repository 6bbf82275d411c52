#pragma once

#include "runtime/tensor_view.hpp"

#include <array>
#include <cstddef>
#include <memory>
#include <span>

namespace millrace::weightsync {

/// GPUs that NCCL joins, one for each rank. Used by one thread at a time; each rank calls the same
/// collectives in the same order.
class nccl_domain {
public:
  using ticket = std::array<std::byte, 128>; ///< made by one rank, given to all by other means

  static ticket make_ticket();
  /// Joins with this thread's current GPU. Throws user_error when not all ranks come within the time.
  nccl_domain(const ticket& t, int rank, int ranks, double timeout_s);
  ~nccl_domain();
  nccl_domain(const nccl_domain&) = delete;
  nccl_domain& operator=(const nccl_domain&) = delete;

  /// Sends `memory` (GPU memory, as long everywhere) from `root` to all others. Throws user_error
  /// when it isn't done within the time, or a rank was lost; the domain is unusable then.
  void broadcast(std::span<std::byte> memory, int root, double timeout_s);

  [[nodiscard]] int rank() const { return rank_; }

private:
  void wait(double timeout_s, const char* what);
  struct handles;
  std::unique_ptr<handles> handles_;
  int rank_;
};

} // namespace millrace::weightsync
