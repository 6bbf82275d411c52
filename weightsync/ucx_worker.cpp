#include "weightsync/ucx_worker.hpp"

#include <poll.h>

#include <algorithm>
#include <cmath>

namespace millrace::weightsync {

ucx_worker::ucx_worker(std::shared_ptr<ucx_context> context) : context_(std::move(context)) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucx_check(ucp_worker_create(context_->handle(), &params, &handle_),
            "weight_sync: UCX can't make a worker");
  ucx_check(ucp_worker_get_efd(handle_, &event_fd_), "weight_sync: UCX has no wake-up");
}

ucx_worker::~ucx_worker() { ucp_worker_destroy(handle_); }

std::string ucx_worker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  ucx_check(ucp_worker_get_address(handle_, &address, &length), "weight_sync: UCX's address");
  std::string bytes(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(handle_, address);
  return bytes;
}

bool ucx_worker::wait(double seconds, int wake_fd) {
  // Armed, the descriptor reports what comes from now on; busy: something came in between.
  if (ucp_worker_arm(handle_) != UCS_OK)
    return true;
  pollfd fds[2] = {{event_fd_, POLLIN, 0}, {wake_fd, POLLIN, 0}};
  auto ms = seconds < 0 ? -1 : static_cast<int>(std::ceil(std::min(seconds, 1e6) * 1e3));
  return ::poll(fds, wake_fd < 0 ? 1 : 2, ms) > 0;
}

} // namespace millrace::weightsync
