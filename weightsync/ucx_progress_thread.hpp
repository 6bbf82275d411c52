#pragma once

#include "weightsync/ucx_worker.hpp"

#include <atomic>
#include <thread>

namespace millrace::weightsync {

/// The publishing side's worker and the thread that answers reads which the hardware can't serve
/// alone. Sleeps on the worker's descriptor while nobody reads.
class ucx_progress_thread {
public:
  explicit ucx_progress_thread(std::shared_ptr<ucx_context> context);
  ~ucx_progress_thread();
  ucx_progress_thread(const ucx_progress_thread&) = delete;
  ucx_progress_thread& operator=(const ucx_progress_thread&) = delete;

  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] const std::shared_ptr<ucx_context>& context() const { return worker_.context(); }

private:
  void run();

  ucx_worker worker_;
  std::string address_;
  int wake_fd_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

} // namespace millrace::weightsync
