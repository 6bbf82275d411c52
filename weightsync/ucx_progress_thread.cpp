#include "weightsync/ucx_progress_thread.hpp"

#include "weightsync/quiet_thread.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

namespace millrace::weightsync {

ucx_progress_thread::ucx_progress_thread(std::shared_ptr<ucx_context> context)
  : worker_(std::move(context)), address_(worker_.address()),
    wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  thread_ = quiet_thread([this] { run(); });
}

ucx_progress_thread::~ucx_progress_thread() {
  stop_ = true;
  std::uint64_t one = 1;
  [[maybe_unused]] auto written = ::write(wake_fd_, &one, sizeof(one));
  thread_.join();
  ::close(wake_fd_);
}

void ucx_progress_thread::run() {
  while (!stop_) {
    while (worker_.progress())
      ;
    worker_.wait(-1, wake_fd_);
  }
}

} // namespace millrace::weightsync
