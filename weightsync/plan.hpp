#pragma once

#include "weightsync/layout.hpp"
#include "weightsync/manifest.hpp"

#include <cstdint>
#include <set>
#include <span>
#include <vector>

namespace millrace::weightsync {

/// From a pulled shard into one of the receiver's tensors; positions are elements, `from` counted
/// from the shard's first one and `to` from the start of the local tensor.
struct shard_copy {
  std::uint32_t view = 0; ///< index into the receiver's tensors
  strided_copy elements;
};

/// What happens with one pulled shard.
struct landing {
  std::uint32_t tensor = 0; ///< index into manifest::tensors
  std::uint32_t shard = 0;  ///< index into its shards
  std::uint64_t at = 0;     ///< bytes from the start of the fetch
  std::vector<shard_copy> copies;
};

/// One read: neighbouring shards of one owner.
struct fetch {
  std::int32_t owner = 0;
  std::uint64_t offset = 0; ///< bytes from the start of the owner's region
  std::uint64_t bytes = 0;
  std::vector<landing> shards;
  bool in_place = false; ///< goes straight into the receiver's tensor, which keeps type and order
  bool delta = false;    ///< of the shards' changes, not of the shards
};

struct plan_options {
  std::int32_t receiver = 0;             ///< spreads receivers over equally loaded replicas
  std::uint64_t fetch_bytes = 1U << 20U; ///< neighbours are merged up to this size
  std::set<std::int32_t> avoid;          ///< owners not to ask where another has the same bytes
};

/// Everything that one receiver has to do for a version, computed once for each topology.
struct transfer_plan {
  std::uint64_t topology = 0; ///< manifest::topology() that it is for
  std::vector<fetch> fetches;
  /// For each of the receiver's tensors: it is collected as f32 and converted when it is complete,
  /// because a row's scale depends on all of the row.
  std::vector<bool> collected;
  std::uint64_t wire_bytes = 0;   ///< that will be pulled
  std::uint64_t needed_bytes = 0; ///< that land in a tensor; less where shards cross the target's cuts
};

/// Covers the target layout with shards of the manifest: each element once, from the least-loaded
/// owner among replicas. Throws user_error, naming the tensor, when the manifest lacks something, or
/// a local tensor is missing, too small, or of a type that the published one can't become.
transfer_plan make_plan(const manifest& m, const layout& target,
                        std::span<const tensor_view> tensors, const plan_options& options);

/// The same transfer, but of a shard's changes only, wherever the manifest has them and the receiver
/// can rebuild the shard from the tensors of the version before: it has all of it, in its type.
transfer_plan make_delta_plan(const manifest& m, const transfer_plan& full,
                              std::span<const tensor_view> tensors, std::uint64_t fetch_bytes);

} // namespace millrace::weightsync
