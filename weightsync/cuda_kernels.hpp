#pragma once

// What cuda_kernels.cu offers to C++: plain functions that start kernels on this thread's stream and
// wait for them. All pointers are into GPU memory but for the task arrays and the results.

#include <cstddef>
#include <cstdint>

namespace millrace::weightsync::cuda {

enum class number : std::uint8_t { f32, bf16, i8, f8_e4m3, bytes1, bytes2, bytes4, bytes8 };

struct copy_task {
  const unsigned char* from;
  unsigned char* to;
  number from_type;
  number to_type;
  std::int64_t from_start, to_start, length, count, from_stride, to_stride; // elements
  float scale;
};

struct block_task {
  const unsigned char* bytes;
  std::uint64_t length;
};

struct quantise_task {
  const float* from;
  unsigned char* to;
  number to_type;
  float* scales;
  std::int64_t rows, columns;
};

/// Each returns CUDA's error text, or null.
const char* run_copies(const copy_task* tasks, std::size_t n);
/// XXH3 of blocks over 240 bytes; `keys` is an xxh3::key_schedule.
const char* run_checksums(const block_task* tasks, std::size_t n, const void* keys,
                          std::uint64_t* sums);
const char* run_quantise(const quantise_task* tasks, std::size_t n);

} // namespace millrace::weightsync::cuda
