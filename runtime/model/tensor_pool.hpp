#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::model {

/// From now on libtorch's large tensors on the CPU lie in blocks of memory that are used again for others
/// of about their size, each mapped by itself. A training step makes and drops large tensors of many
/// sizes in every order, among them ones that stay: malloc() then holds up to twice what is in use in
/// holes that fit nothing, and fresh memory for each tensor would cost a page fault for each page.
///
/// Blocks that are free are given back to the system as soon as they, with what is in use, would be
/// more than a little above the most that was ever in use. malloc(), which has the smaller ones, is told
/// to keep what it was given back. Call it once, early.
void pool_tensor_memory();

struct tensor_pool_usage {
  std::int64_t in_use = 0, free = 0; ///< bytes of blocks
  std::int64_t peak = 0;             ///< the most that were mapped
};
[[nodiscard]] tensor_pool_usage tensor_pool();

/// Gives back all that is free, and forgets how much was in use before.
void trim_tensor_pool();

} // namespace millrace::model
