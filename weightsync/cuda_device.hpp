#pragma once

#include "weightsync/memory_device.hpp"

namespace millrace::weightsync {

/// GPU memory: kernels on the GPU that holds the tensors. Reads are proven and unpacked many at a
/// time, because one checksum by eight threads is slow and thousands at once are not.
class cuda_device : public memory_device {
public:
  [[nodiscard]] std::string_view name() const override { return "cuda"; }
  std::shared_ptr<std::byte[]> allocate(std::size_t bytes, const void* beside) override;
  void copy(std::span<const typed_copy> tasks) override;
  std::vector<std::uint64_t> checksums(
    std::span<const std::span<const std::byte>> blocks) override;
  void quantise(std::span<const row_quantisation> tasks) override;
  void upload(std::span<const std::byte> from, std::byte* to) override;
  [[nodiscard]] std::size_t batch() const override { return 256; }
};

/// Throws user_error where there is no GPU, with CUDA's reason.
memory_device& the_cuda_device();

/// Whether there is one.
bool cuda_available();

} // namespace millrace::weightsync
