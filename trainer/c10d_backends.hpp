#pragma once

// What differs between c10d's backends: how one is made. All else is in collectives_c10d.cpp.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace millrace::trainer {

/// For tensors in host memory. `local`: all ranks are on this machine.
c10::intrusive_ptr<c10d::Backend> gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int size,
                                               std::chrono::milliseconds timeout, bool local);

/// For tensors on CUDA devices, by libmillrace_nccl.so beside this program (nccl_module.cpp), which is
/// opened when it is first asked for. libtorch's CUDA half must be open (torch_device.hpp).
/// \throws user_error when there is no such library, or it sees no device
c10::intrusive_ptr<c10d::Backend> nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int size,
                                               std::chrono::milliseconds timeout);

} // namespace millrace::trainer
