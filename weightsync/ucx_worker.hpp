#pragma once

#include "weightsync/ucx_context.hpp"

#include <memory>
#include <string>

namespace millrace::weightsync {

/// A UCX worker with its wake-up descriptor. Used by one thread at a time.
class ucx_worker {
public:
  explicit ucx_worker(std::shared_ptr<ucx_context> context);
  ~ucx_worker();
  ucx_worker(const ucx_worker&) = delete;
  ucx_worker& operator=(const ucx_worker&) = delete;

  [[nodiscard]] ucp_worker_h handle() const { return handle_; }
  [[nodiscard]] const std::shared_ptr<ucx_context>& context() const { return context_; }
  /// What peers connect to.
  [[nodiscard]] std::string address() const;

  /// Does what is due; true when there was something.
  bool progress() { return ucp_worker_progress(handle_) != 0; }
  /// Sleeps until there is something to do, `wake_fd` (or −1) is readable, or `seconds` have passed;
  /// without end where that is negative. False when the time is over.
  bool wait(double seconds, int wake_fd = -1);

private:
  std::shared_ptr<ucx_context> context_;
  ucp_worker_h handle_ = nullptr;
  int event_fd_ = -1;
};

} // namespace millrace::weightsync
