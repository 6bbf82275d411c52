#pragma once

#include "weightsync/xxh3_lanes.hpp"

#include <cstddef>
#include <span>

namespace millrace::weightsync::xxh3 {

/// The words of libxxhash's default secret.
key_schedule default_keys();

/// The hash by the steps of xxh3_lanes.hpp, on the host: what proves them. At least `shortest` bytes.
std::uint64_t hash_by_steps(std::span<const std::byte> bytes);

} // namespace millrace::weightsync::xxh3
