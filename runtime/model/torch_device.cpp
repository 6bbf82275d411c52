#include "runtime/model/torch_device.hpp"

#include "runtime/error.hpp"

#include <ATen/Context.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <dlfcn.h>

#include <filesystem>
#include <mutex>

namespace millrace::model {
namespace {

/// libtorch_cuda.so, where the rest of libtorch lies; empty when that can't be told.
std::filesystem::path cuda_half() {
  Dl_info found{};
  if (dladdr(reinterpret_cast<const void*>(&at::globalContext), &found) == 0 || !found.dli_fname)
    return {};
  return std::filesystem::path(found.dli_fname).parent_path() / "libtorch_cuda.so";
}

/// Its kernels register themselves as it is opened. Never closed: libtorch keeps pointers into it.
void open_cuda_half(const std::string& where) {
  static std::mutex guard;
  const std::lock_guard lock(guard);
  static bool open = false;
  if (open)
    return;
  const auto file = cuda_half();
  if (dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const auto* why = dlerror();
    throw user_error(where + ": found \"cuda\", but libtorch's CUDA half can't be opened ("
                     + (why != nullptr ? why : file.string())
                     + "); run ./quickstart build with MILLRACE_GPU=ON, or set \"cpu\"");
  }
  ensure(at::detail::getCUDAHooks().isBuilt(),
         "libtorch looked for CUDA before its CUDA half was opened, and looks only once");
  open = true;
}

} // namespace

bool nvidia_driver_here() {
  static const bool here = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr;
  return here;
}

void prepare_for_cuda() {
  if (!nvidia_driver_here())
    return;
  try {
    open_cuda_half({});
  } catch (const user_error&) {
    // Told where a device is asked for.
  }
}

int cuda_devices(const std::string& where) {
  // Without it the CUDA half couldn't be used, and often isn't installed: that it can't be opened
  // would be the second thing to know.
  if (!nvidia_driver_here())
    throw user_error(where + ": found \"cuda\", but " + no_nvidia_driver + "; set \"cpu\"");
  open_cuda_half(where);
  return at::globalContext().hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
}

c10::Device torch_device(compute_device kind, int index, const std::string& where) {
  if (kind == compute_device::cpu)
    return c10::kCPU;
  const auto count = cuda_devices(where);
  if (count == 0)
    throw user_error(where + ": found \"cuda\", but this process sees no CUDA device (no GPU, a "
                             "driver too old, or CUDA_VISIBLE_DEVICES hides it); set \"cpu\"");
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index % count)};
}

void wait_for(c10::Device device) {
  if (device.is_cuda()) // elsewhere calls return when they are done
    c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
}

} // namespace millrace::model
