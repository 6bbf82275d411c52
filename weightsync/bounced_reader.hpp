#pragma once

#include "weightsync/memory_device.hpp"
#include "weightsync/transport.hpp"

#include <memory>

namespace millrace::weightsync {

/// Reads into memory that `carrier` can't write to, by way of host memory, a few reads at a time.
/// `target` is what that memory belongs to, and outlives this.
std::unique_ptr<reader> by_way_of_host(std::unique_ptr<reader> carrier, memory_device& target);

} // namespace millrace::weightsync
