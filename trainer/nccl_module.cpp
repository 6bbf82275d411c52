// c10d's NCCL: the whole of libmillrace_nccl.so.

#include "trainer/nccl_module.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>

namespace {

/// Unless the user says otherwise: an error or time-out ends the communicator, and is told by the next
/// operation, where c10d by itself would end the process.
void handle_errors_ourselves() {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", std::to_string(c10d::CleanUpOnly).c_str(), 0);
  ::setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 0);
}

} // namespace

extern "C" __attribute__((visibility("default"))) void
millrace_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                      std::chrono::milliseconds timeout, c10::intrusive_ptr<c10d::Backend>& made) {
  handle_errors_ourselves();
  auto o = c10d::ProcessGroupNCCL::Options::create();
  o->timeout = timeout;
  made = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, o);
}

static_assert(std::is_same_v<decltype(millrace_nccl_backend),
                             millrace::trainer::nccl_module_function>);
