#pragma once

#include "weightsync/layout.hpp"
#include "weightsync/manifest.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace millrace::weightsync {

/// How a trainer rank's tensors lie in its published region. Shards are cut where receivers' slices
/// begin and end, and each lies contiguous, so that a receiver reads whole shards and can prove them,
/// also where its slice has columns only. Computed once.
struct packing {
  struct piece {
    std::size_t placement = 0; ///< index into the layout
    std::size_t tensor = 0;    ///< index into outline.tensors
    std::size_t shard = 0;     ///< index into its shards
    std::vector<strided_copy> copies; ///< from the local tensor (elements) into the shard
  };
  manifest outline; ///< without version, owners, checksums and scales
  std::vector<piece> pieces;
  std::vector<std::size_t> views; ///< for each placement its index into the tensors
  std::uint64_t bytes = 0;        ///< of the region
};

struct packing_options {
  std::size_t shard_bytes = 0;
  std::function<dtype(const placement&, dtype)> wire_type;
  std::span<const layout> readers;
};

/// Throws user_error when a tensor is missing, too small, or of a type that can't be sent as asked.
packing make_packing(const layout& held, std::span<const tensor_view> tensors,
                     const packing_options& options);

/// Cuts what an owner has of a tensor where the readers' slices begin and end, as far as the pieces
/// can be described as slices.
std::vector<slice> cut(const tensor_shape& shape, const slice& part,
                       std::span<const slice> readers);

} // namespace millrace::weightsync
