#include "runtime/model/torch_device.hpp"

#include "runtime/error.hpp"

#include <dlfcn.h>

#include <catch2/catch.hpp>

#include <string>

using namespace millrace;

TEST_CASE("a CUDA device on a machine without a driver: the driver is what is missing") {
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr) {
    REQUIRE(model::nvidia_driver_here());
    return;
  }
  const std::string whole = "generator.device: found \"cuda\", but there is no NVIDIA driver on "
                            "this machine (libcuda.so.1 is not found); set \"cpu\"";
  // Nor is it another thing after libtorch's CUDA half was looked for.
  for (int i = 0; i < 2; ++i, model::prepare_for_cuda()) {
    REQUIRE_THROWS_WITH(model::cuda_devices("generator.device"), whole);
    REQUIRE_THROWS_WITH(model::torch_device(compute_device::cuda, 1, "generator.device"), whole);
    REQUIRE(model::torch_device(compute_device::cpu, 1, "generator.device").is_cpu());
  }
}
