#pragma once

// What libmillrace_nccl.so exports. A library of its own, because it is linked with libtorch's CUDA
// half, which the program itself must not need.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace millrace::trainer {

/// Of the one function, "millrace_nccl_backend": makes an NCCL backend. \throws c10::Error when there
/// is no CUDA device
using nccl_module_function = void(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  std::chrono::milliseconds timeout,
                                  c10::intrusive_ptr<c10d::Backend>& made);

} // namespace millrace::trainer
