#pragma once

#include "weightsync/layout.hpp"
#include "weightsync/manifest.hpp"
#include "weightsync/memory_device.hpp"
#include "weightsync/packing.hpp"
#include "weightsync/publisher_machine.hpp"
#include "weightsync/transport.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace millrace::weightsync {

struct publisher_options {
  std::size_t slots = 2; ///< buffers: the current version's, and the one being filled
  double lease_s = 10;   ///< how long a receiver may read without a sign of progress
  std::size_t shard_bytes = std::size_t{1} << 20U; ///< at most
  /// Type on the wire of each tensor; empty: as it is. f32 can go as bf16 or (2-D) as i8.
  std::function<dtype(const placement&, dtype)> wire_type;
  /// What receivers will ask for: shards are cut where these are, so that no receiver pulls a byte
  /// that it doesn't need. May be empty.
  std::vector<layout> readers;
  /// Also publish what changed since the version before, for receivers that still have that one.
  /// Takes half as much memory again, and time to compare.
  bool delta = false;
  std::size_t threads = 2; ///< that copy, where there is enough to copy
};

/// What publishing cost. Seconds are the mean of the threads that copied.
struct publish_report {
  std::uint64_t bytes = 0;
  /// Copy or conversion into the slot, with the checksums where both are done in one pass.
  double copy_s = 0;
  double checksum_s = 0;
  double delta_s = 0;            ///< comparing with the version before
  std::uint64_t delta_bytes = 0; ///< of the changes; shards that must be read in full not counted
};

/// One trainer rank's side of weight sync: copies parameters into a free slot of registered memory,
/// from which receivers read one-sidedly while training goes on. Thread-safe: one thread publishes,
/// any may lease and release. `now` is in seconds on a clock that all callers share.
class publisher {
public:
  /// `held`: what this rank publishes of which tensors. Allocates nothing yet.
  publisher(transport& carrier, layout held, publisher_options options);
  ~publisher();

  /// Whether publish() takes tensors in such memory: of a GPU's, where the transport can expose it,
  /// neither 8-bit integers nor changes alone are sent.
  [[nodiscard]] bool takes(memory_kind kind) const;
  /// Copies `tensors` (those that the layout names; all in one kind of memory, which the slots are
  /// then in, too) and makes them the current version. None, and nothing copied, when readers still
  /// hold every other slot.
  std::optional<manifest> publish(version v, std::span<const tensor_view> tensors, double now,
                                  publish_report* report = nullptr);
  /// The manifest of the current version: for a receiver that joins late. None before the first.
  [[nodiscard]] std::optional<manifest> current() const;
  /// When publish() may succeed at the latest: `now` when it would already.
  [[nodiscard]] double blocked_until(double now) const;

  lease acquire(const std::string& receiver, version v, double now);
  bool renew(lease_id id, double now);
  bool release(lease_id id, double now);
  void forget(const std::string& receiver, double now);
  std::vector<held_lease> tick(double now);
  void acknowledge(const std::string& receiver, version v);
  [[nodiscard]] version acknowledged(const std::string& receiver) const;
  [[nodiscard]] std::size_t active_leases() const;

private:
  void prepare(std::span<const tensor_view> tensors);
  manifest fill(std::size_t slot, version v, std::span<const tensor_view> tensors,
                publish_report& report);
  void add_copies(const packing::piece& piece, const tensor_view& view, dtype type, shard& s,
                  std::span<const float> row_scales, std::byte* to,
                  std::vector<typed_copy>& copies) const;
  struct share;
  [[nodiscard]] std::vector<share> shares() const;
  void fill_share(std::span<const tensor_view> tensors, std::span<const std::vector<float>> scales,
                  std::span<std::byte> memory, std::optional<std::size_t> before, manifest& m,
                  share& mine) const;
  void add_delta(std::size_t before, dtype type, shard& s, std::span<const std::byte> region,
                 std::size_t space, share& mine) const;
  std::vector<std::vector<float>> row_scales(std::span<const tensor_view> tensors) const;

  transport& carrier_;
  memory_kind memory_ = memory_kind::host;
  layout held_;
  publisher_options options_;
  mutable std::mutex mutex_; // guards machine_ and current_
  publisher_machine machine_;
  std::optional<manifest> current_;
  std::optional<packing> packing_; // this and slots_: used by the publishing thread only
  std::vector<std::unique_ptr<exposed_memory>> slots_;
};

} // namespace millrace::weightsync
