#include "weightsync/host_device.hpp"

#include "runtime/error.hpp"
#include "weightsync/checksum.hpp"
#include "weightsync/convert.hpp"

#include <cstring>

#ifdef MILLRACE_WITH_CUDA
#include "weightsync/cuda_device.hpp"
#endif

namespace millrace::weightsync {

namespace {

// Whether the block is as many bytes in a row as the copy brings, unchanged.
bool fills(const typed_copy& t, std::span<const std::byte> block) {
  auto size = size_of(t.to_type);
  return t.from_type == t.to_type && t.elements.count == 1
         && t.to + static_cast<std::size_t>(t.elements.to) * size == block.data()
         && static_cast<std::size_t>(t.elements.length) * size == block.size();
}

} // namespace

std::shared_ptr<std::byte[]> host_device::allocate(std::size_t bytes, const void*) {
  return std::shared_ptr<std::byte[]>(new std::byte[bytes]);
}

void host_device::copy(std::span<const typed_copy> tasks) {
  for (const auto& t : tasks) {
    const auto& e = t.elements;
    for (std::int64_t i = 0; i < e.count; ++i)
      convert(t.from_type,
              t.from + static_cast<std::size_t>(e.from + i * e.from_stride) * size_of(t.from_type),
              t.to_type,
              t.to + static_cast<std::size_t>(e.to + i * e.to_stride) * size_of(t.to_type),
              static_cast<std::size_t>(e.length), t.scale);
  }
}

std::vector<std::uint64_t> memory_device::copy_and_sum(
  std::span<const typed_copy> tasks, std::span<const std::size_t>,
  std::span<const std::span<const std::byte>> blocks) {
  copy(tasks);
  return checksums(blocks);
}

std::vector<std::uint64_t> host_device::copy_and_sum(
  std::span<const typed_copy> tasks, std::span<const std::size_t> counts,
  std::span<const std::span<const std::byte>> blocks) {
  std::vector<std::uint64_t> sums;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    auto mine = tasks.first(counts[i]);
    tasks = tasks.subspan(counts[i]);
    if (mine.size() == 1 && fills(mine[0], blocks[i])) {
      const auto& t = mine[0];
      auto at = static_cast<std::size_t>(t.elements.from) * size_of(t.from_type);
      auto* to = t.to + static_cast<std::size_t>(t.elements.to) * size_of(t.to_type);
      sums.push_back(copy_with_checksum({t.from + at, blocks[i].size()}, to));
      continue;
    }
    copy(mine);
    sums.push_back(checksum(blocks[i]));
  }
  return sums;
}

std::vector<std::uint64_t> host_device::checksums(
  std::span<const std::span<const std::byte>> blocks) {
  std::vector<std::uint64_t> sums;
  sums.reserve(blocks.size());
  for (auto b : blocks)
    sums.push_back(checksum(b));
  return sums;
}

void host_device::quantise(std::span<const row_quantisation> tasks) {
  for (const auto& t : tasks) {
    const bool f8 = t.to_type == dtype::f8_e4m3;
    ensure(f8 || t.to_type == dtype::i8, "rows are quantised to i8 or f8_e4m3");
    auto columns = static_cast<std::size_t>(t.columns);
    for (std::int64_t r = 0; r < t.rows; ++r) {
      const auto* row = t.from + r * t.columns;
      const auto largest = largest_magnitude(row, columns);
      auto* to = t.to + r * t.columns;
      t.scales[r] = f8 ? f8_scale(largest) : i8_scale(largest);
      if (f8)
        f32_to_f8(row, reinterpret_cast<std::uint8_t*>(to), columns, t.scales[r]);
      else
        f32_to_i8(row, reinterpret_cast<std::int8_t*>(to), columns, t.scales[r]);
    }
  }
}

void host_device::upload(std::span<const std::byte> from, std::byte* to) {
  std::memcpy(to, from.data(), from.size());
}

memory_device& device_for(memory_kind kind) {
  static host_device host;
  if (kind == memory_kind::host)
    return host;
#ifdef MILLRACE_WITH_CUDA
  return the_cuda_device();
#else
  throw user_error("weight_sync: tensors in GPU memory, but Millrace was built without CUDA: "
                   "configure with -DMILLRACE_CUDA=ON");
#endif
}

} // namespace millrace::weightsync
