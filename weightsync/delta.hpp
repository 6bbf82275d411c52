#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace::weightsync {

// The changed elements of a shard: a 32-bit count of steps, the steps (a byte each), then the new
// elements. A step g < 255 skips g elements and overwrites the next one; 255 skips 255. So a change
// costs one byte more than itself, and a bf16 model of which 3% changes needs 5% of its bytes.

/// Appends the elements of `size` bytes that differ, to `out`; false, with `out` as it was, when
/// that takes `limit` bytes or more. Both spans are as long, a multiple of `size`.
bool encode_delta(std::span<const std::byte> before, std::span<const std::byte> after,
                  std::size_t size, std::size_t limit, std::vector<std::byte>& out);

/// Overwrites the changed elements in `bytes`; false when `delta` isn't one for so many bytes.
bool apply_delta(std::span<const std::byte> delta, std::size_t size, std::span<std::byte> bytes);

} // namespace millrace::weightsync
