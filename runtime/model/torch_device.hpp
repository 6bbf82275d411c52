#pragma once

#include "runtime/config/settings.hpp"

#include <c10/core/Device.h>

#include <string>

namespace millrace::model {

/// The device that tensors are to be on: the CPU, or CUDA device `index` modulo those that this
/// process sees (CUDA_VISIBLE_DEVICES). `where` names the option that asked for it. The first call
/// for a CUDA device opens libtorch's CUDA half. \throws user_error where there is no driver, no such
/// half, or no device
c10::Device torch_device(compute_device kind, int index, const std::string& where);

/// Whether this machine has NVIDIA's driver; and what is to be said where it hasn't.
bool nvidia_driver_here();
inline constexpr auto no_nvidia_driver
  = "there is no NVIDIA driver on this machine (libcuda.so.1 is not found)";

/// How many CUDA devices this process sees. \throws user_error where the driver or libtorch's CUDA half
/// is missing
int cuda_devices(const std::string& where);

/// Opens libtorch's CUDA half, if there is one, for a process that will compute on CUDA devices later:
/// libtorch looks for it once, at the first backward pass at the latest.
void prepare_for_cuda();

/// Returns when what this thread has asked of the device is done.
void wait_for(c10::Device device);

} // namespace millrace::model
