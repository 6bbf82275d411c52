#pragma once

#include "runtime/tensor_view.hpp"
#include "weightsync/slice.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace millrace::weightsync {

/// Copies elements and converts them: equal types, f32 ↔ bf16, i8 → f32 or bf16 (times `scale`), f32 →
/// i8 (divided by it, rounded to the nearest).
struct typed_copy {
  const std::byte* from = nullptr; ///< where the positions of `elements` count from
  std::byte* to = nullptr;
  dtype from_type = dtype::f32;
  dtype to_type = dtype::f32;
  strided_copy elements;
  float scale = 1;
};

/// Converts each row of a matrix to i8 or f8_e4m3 with a scale of its own: its largest magnitude
/// becomes the largest number of the type (127, 448).
struct row_quantisation {
  const float* from = nullptr;
  std::byte* to = nullptr;
  dtype to_type = dtype::i8;
  float* scales = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

/// The arithmetic of weight sync, done where the tensors are: by the processor in host memory, by a
/// GPU in its own. All pointers are into its memory; every call returns when it is done.
class memory_device {
public:
  virtual ~memory_device() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Memory of its own, not initialised; of several GPUs on that which holds `beside`.
  virtual std::shared_ptr<std::byte[]> allocate(std::size_t bytes,
                                                const void* beside = nullptr) = 0;
  virtual void copy(std::span<const typed_copy> tasks) = 0;
  /// The same, and the checksums of the blocks that the copies fill; block i by `counts[i]` of them,
  /// in order.
  virtual std::vector<std::uint64_t> copy_and_sum(
    std::span<const typed_copy> tasks, std::span<const std::size_t> counts,
    std::span<const std::span<const std::byte>> blocks);
  /// As checksum() of each.
  virtual std::vector<std::uint64_t> checksums(
    std::span<const std::span<const std::byte>> blocks) = 0;
  virtual void quantise(std::span<const row_quantisation> tasks) = 0;
  /// Writes host bytes into its memory.
  virtual void upload(std::span<const std::byte> from, std::byte* to) = 0;
  /// How many reads' bytes to prove and unpack at once.
  [[nodiscard]] virtual std::size_t batch() const = 0;
};

/// Of this kind of memory. Throws user_error for GPU memory where there is no GPU, or Millrace was
/// built without CUDA.
memory_device& device_for(memory_kind kind);

} // namespace millrace::weightsync
