#pragma once

#include "weightsync/memory_device.hpp"

namespace millrace::weightsync {

/// Host memory. One fetch at a time, so that its bytes are proven and unpacked while they are in the
/// cache. Stateless, so any thread may use it.
class host_device : public memory_device {
public:
  [[nodiscard]] std::string_view name() const override { return "host"; }
  std::shared_ptr<std::byte[]> allocate(std::size_t bytes, const void* beside) override;
  void copy(std::span<const typed_copy> tasks) override;
  std::vector<std::uint64_t> checksums(
    std::span<const std::span<const std::byte>> blocks) override;
  void quantise(std::span<const row_quantisation> tasks) override;
  void upload(std::span<const std::byte> from, std::byte* to) override;
  /// In one pass where a block is nothing but a copy of as many bytes.
  std::vector<std::uint64_t> copy_and_sum(
    std::span<const typed_copy> tasks, std::span<const std::size_t> counts,
    std::span<const std::span<const std::byte>> blocks) override;
  [[nodiscard]] std::size_t batch() const override { return 1; }
};

} // namespace millrace::weightsync
