// Opens libmillrace_nccl.so, where NCCL is asked for.

#include "trainer/c10d_backends.hpp"
#include "trainer/nccl_module.hpp"

#include "runtime/error.hpp"
#include "runtime/model/torch_device.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <string>

namespace millrace::trainer {

namespace {

constexpr auto option = "trainer.device";

/// Never closed: backends that it made may outlive everything else.
nccl_module_function* open_module() {
  if (!model::nvidia_driver_here())
    throw user_error(std::string(option) + ": NCCL was asked for, but " + model::no_nvidia_driver
                     + "; set trainer.device to \"cpu\"");
  const auto file = std::filesystem::read_symlink("/proc/self/exe").parent_path()
                    / "libmillrace_nccl.so";
  if (!std::filesystem::exists(file))
    throw user_error(std::string(option) + ": NCCL was asked for, but Millrace was built without "
                     "CUDA (" + file.string() + " isn't there); build it where the CUDA toolkit is, "
                     "or set trainer.device to \"cpu\"");
  auto* module = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  auto* made = module ? ::dlsym(module, "millrace_nccl_backend") : nullptr;
  if (made == nullptr) {
    const auto* why = ::dlerror();
    throw user_error(std::string(option) + ": NCCL can't be opened: "
                     + (why != nullptr ? why : file.string())
                     + "; run ./quickstart build with MILLRACE_GPU=ON");
  }
  return reinterpret_cast<nccl_module_function*>(made);
}

} // namespace

c10::intrusive_ptr<c10d::Backend> nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int size,
                                               std::chrono::milliseconds timeout) {
  static auto* make = open_module();
  c10::intrusive_ptr<c10d::Backend> made;
  try {
    make(store, rank, size, timeout, made);
  } catch (const std::exception& e) {
    const std::string why = e.what();
    throw user_error(std::string(option) + ": NCCL can't begin: " + why.substr(0, why.find('\n'))
                     + "; set trainer.device to \"cpu\" where there is no CUDA device");
  }
  return made;
}

} // namespace millrace::trainer
