#include "weightsync/cuda_device.hpp"

#include "runtime/error.hpp"
#include "weightsync/checksum.hpp"
#include "weightsync/cuda_kernels.hpp"
#include "weightsync/xxh3_secret.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <string>

namespace millrace::weightsync {

namespace {

void check(const char* error, const std::string& what) {
  if (error != nullptr)
    throw user_error("weight_sync: " + what + " on the GPU: " + error);
}

void check(cudaError_t error, const std::string& what) {
  check(error == cudaSuccess ? nullptr : cudaGetErrorString(error), what);
}

// Work goes to the GPU that holds the memory.
void select_gpu_of(const void* memory) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, memory), "finding a tensor");
  if (attributes.type != cudaMemoryTypeDevice)
    throw user_error("weight_sync: a tensor that should be in GPU memory isn't");
  check(cudaSetDevice(attributes.device), "selecting a GPU");
}

cuda::number number_of(dtype t) {
  switch (t) {
    case dtype::f32: return cuda::number::f32;
    case dtype::bf16: return cuda::number::bf16;
    case dtype::i8: return cuda::number::i8;
    case dtype::f8_e4m3: return cuda::number::f8_e4m3;
    case dtype::f16: return cuda::number::bytes2;
    case dtype::i32: return cuda::number::bytes4;
    case dtype::i64: return cuda::number::bytes8;
    default: return cuda::number::bytes1;
  }
}

/// Where there is no driver CUDA says that it is too old.
std::string why_no_gpu() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
    return "there is no NVIDIA driver on this machine (libcuda.so.1 is not found)";
  return "CUDA finds no GPU: " + std::string(cudaGetErrorString(cudaGetLastError()));
}

} // namespace

bool cuda_available() {
  int count = 0; // with no driver the call fails and leaves this as it is
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

memory_device& the_cuda_device() {
  static cuda_device device;
  if (!cuda_available())
    throw user_error("weight_sync: tensors in GPU memory, but " + why_no_gpu());
  return device;
}

std::shared_ptr<std::byte[]> cuda_device::allocate(std::size_t bytes, const void* beside) {
  if (beside != nullptr)
    select_gpu_of(beside);
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes == 0 ? 1 : bytes), "allocating " + std::to_string(bytes)
                                                       + " bytes");
  return {static_cast<std::byte*>(memory), [](std::byte* p) { cudaFree(p); }};
}

void cuda_device::copy(std::span<const typed_copy> tasks) {
  if (tasks.empty())
    return;
  select_gpu_of(tasks[0].to);
  std::vector<cuda::copy_task> list;
  list.reserve(tasks.size());
  for (const auto& t : tasks) {
    const auto& e = t.elements;
    list.push_back({reinterpret_cast<const unsigned char*>(t.from),
                    reinterpret_cast<unsigned char*>(t.to), number_of(t.from_type),
                    number_of(t.to_type), e.from, e.to, e.length, e.count, e.from_stride,
                    e.to_stride, t.scale});
  }
  check(cuda::run_copies(list.data(), list.size()), "copying tensors");
}

std::vector<std::uint64_t> cuda_device::checksums(
  std::span<const std::span<const std::byte>> blocks) {
  static const auto keys = xxh3::default_keys();
  std::vector<std::uint64_t> sums(blocks.size());
  std::vector<cuda::block_task> list;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].size() < xxh3::shortest) { // hashed in another way: not worth a kernel
      std::array<std::byte, xxh3::shortest> small{};
      check(cudaMemcpy(small.data(), blocks[i].data(), blocks[i].size(), cudaMemcpyDeviceToHost),
            "reading a small tensor");
      sums[i] = checksum(std::span(small).first(blocks[i].size()));
      continue;
    }
    if (list.empty())
      select_gpu_of(blocks[i].data());
    list.push_back({reinterpret_cast<const unsigned char*>(blocks[i].data()), blocks[i].size()});
    places.push_back(i);
  }
  std::vector<std::uint64_t> found(list.size());
  check(cuda::run_checksums(list.data(), list.size(), &keys, found.data()), "checksums");
  for (std::size_t i = 0; i < places.size(); ++i)
    sums[places[i]] = found[i];
  return sums;
}

void cuda_device::quantise(std::span<const row_quantisation> tasks) {
  if (tasks.empty())
    return;
  select_gpu_of(tasks[0].to);
  std::vector<cuda::quantise_task> list;
  for (const auto& t : tasks)
    list.push_back({t.from, reinterpret_cast<unsigned char*>(t.to), number_of(t.to_type), t.scales,
                    t.rows, t.columns});
  check(cuda::run_quantise(list.data(), list.size()), "quantising");
}

void cuda_device::upload(std::span<const std::byte> from, std::byte* to) {
  check(cudaMemcpy(to, from.data(), from.size(), cudaMemcpyHostToDevice), "uploading");
}

} // namespace millrace::weightsync
