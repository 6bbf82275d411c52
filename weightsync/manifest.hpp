#pragma once

#include "runtime/ids.hpp"
#include "runtime/tensor_view.hpp"
#include "weightsync/remote_region.hpp"
#include "weightsync/slice.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace::weightsync {

/// The changed elements of a shard, as encode_delta() writes them; length 0: there are none here, the
/// shard must be read in full.
struct shard_delta {
  std::uint64_t offset = 0; ///< bytes from the start of the owner's region
  std::uint64_t length = 0;
  std::uint64_t checksum = 0;

  bool operator==(const shard_delta&) const = default;
};

/// A run of bytes in an owner's region with a checksum of its own: the unit that is pulled, proven
/// and, where that fails, pulled again.
struct shard {
  std::int32_t owner = 0;     ///< index into manifest::owners
  slice part;                 ///< of the tensor, in the order in which it lies there
  std::uint64_t offset = 0;   ///< bytes from the start of the owner's region
  std::uint64_t length = 0;   ///< bytes
  std::uint64_t checksum = 0; ///< of these bytes, as they lie in the region
  /// For i8: value = scale · integer, one scale for each row (index of axis 0) that the shard
  /// touches, from the row of its first element on. Empty for other types.
  std::vector<float> scales;
  /// What changed since manifest::delta_base, where that is less than the shard itself.
  shard_delta delta;

  bool operator==(const shard&) const = default;
};

/// A tensor of the model with everything that is published of it.
struct tensor_entry {
  std::string name; ///< Hugging Face name
  dtype type = dtype::f32; ///< in the regions: on the wire
  tensor_shape shape;      ///< global
  std::vector<shard> shards;

  bool operator==(const tensor_entry&) const = default;
};

/// What a trainer publishes: which bytes of whose memory are the weights of a version.
/// Made by publisher (and merge), read by puller.
struct manifest {
  version number;
  version delta_base = no_version; ///< that the shards' deltas start from
  std::vector<remote_region> owners; ///< one for each trainer rank
  std::vector<tensor_entry> tensors;

  bool operator==(const manifest&) const = default;

  /// Of all shards, replicas counted too.
  [[nodiscard]] std::uint64_t bytes() const;
  /// The same for two versions exactly when a transfer plan for one is right for the other.
  [[nodiscard]] std::uint64_t topology() const;
};

/// Throws user_error, naming tensor and shard, when the manifest isn't sound: a shard outside its
/// tensor or region, a length that doesn't fit, scales that are missing, a name twice. Whether
/// every element that a receiver needs is published, make_plan finds out.
void validate(const manifest& m);

/// The rows (indices of axis 0) that a slice touches: [begin, end).
index_range rows_of(const tensor_shape& shape, const slice& part);

/// One manifest out of those of all trainer ranks, which must be of one version and agree on every
/// tensor's type and shape. Throws user_error otherwise.
manifest merge(std::span<const manifest> ranks);

/// A readable form: bytes as hexadecimal text, 64-bit checksums as text. from_json throws
/// user_error for anything that isn't a sound manifest.
nlohmann::json to_json(const manifest& m);
manifest manifest_from_json(const nlohmann::json& j);

/// A compact form with a checksum of its own. from_binary throws user_error for anything that isn't
/// a sound manifest; it never reads beyond the bytes or allocates more than they could fill.
std::vector<std::byte> to_binary(const manifest& m);
manifest manifest_from_binary(std::span<const std::byte> bytes);

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, slice& x) {
  return f(x.axis, x.begin, x.end, x.first, x.count);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, shard_delta& x) {
  return f(x.offset, x.length, x.checksum);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, shard& x) {
  return f(x.owner, x.part, x.offset, x.length, x.checksum, x.scales, x.delta);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, tensor_entry& x) {
  return f(x.name, x.type, x.shape, x.shards);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, manifest& x) {
  return f(x.number, x.delta_base, x.owners, x.tensors);
}

} // namespace millrace::weightsync
