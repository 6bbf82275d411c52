#pragma once

#include "weightsync/layout.hpp"
#include "weightsync/manifest.hpp"
#include "weightsync/plan.hpp"
#include "weightsync/transport.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace millrace::weightsync {

enum class pull_outcome : std::uint8_t {
  ready,     ///< everything is there and proven
  stopped,   ///< should_stop said so
  timed_out, ///< the deadline passed
  failed     ///< a peer was lost, or a shard stayed wrong over all attempts
};

/// How a pull went, stage by stage. Seconds are of this thread's own work or waiting.
struct pull_report {
  pull_outcome outcome = pull_outcome::failed;
  std::string error; ///< when not ready: what happened, which shard, which peer
  version number;
  std::int64_t bytes = 0;   ///< over the wire, repeated reads included
  std::int64_t retries = 0; ///< fetches that were read again
  std::int64_t saved_bytes = 0; ///< that did not have to be pulled, because they had not changed
  bool delta = false;       ///< only changes were pulled, where there were any
  double plan_s = 0;        ///< 0 when the topology's plan was there already
  double wire_s = 0;        ///< waiting for bytes
  double verify_s = 0;      ///< checksums
  double load_s = 0;        ///< copies into the tensors, with conversion to bf16, f32
  double quantise_s = 0;    ///< conversion to i8
  double total_s = 0;
  /// Share of the measured link bound that the wire stage reached; 0 when it was never measured.
  double link_share = 0;
  [[nodiscard]] bool ready() const { return outcome == pull_outcome::ready; }
};

struct pull_options {
  double timeout_s = 30;
  std::size_t window = 4;        ///< reads in flight
  std::int32_t max_attempts = 3; ///< of one fetch
  std::int32_t receiver = 0;     ///< index among the receivers, spreads them over replicas
  std::uint64_t fetch_bytes = 1U << 20U;
  /// The receiver's tensors as they are in use, like the puller's own in number and shape, and their
  /// version: with a manifest that has the changes since that one, only these are pulled.
  std::span<const tensor_view> base;
  version base_version = no_version;
  /// Asked between two steps of work (every few hundred µs): true ends the pull.
  std::function<bool()> should_stop;
  /// Called when bytes have arrived, at most every 100 ms: the moment to renew the lease.
  std::function<void()> on_progress;
};

/// One receiver's side of weight sync: pulls versions into the same tensors again and again, with
/// the plan, the connections and the registered memory kept. Used by one thread.
class puller {
public:
  /// `tensors` must stay where they are; `target` says what belongs into them.
  puller(transport& carrier, std::vector<tensor_view> tensors, layout target);
  ~puller();

  /// Blocks until the version that the manifest describes is in the tensors, proven, or it can't be.
  /// Unless ready, the tensors hold a mixture that must not be used. The caller holds a lease.
  /// Throws user_error when manifest and tensors can't fit.
  pull_report pull(const manifest& m, const pull_options& options);

  /// Measures what the link can do at best, to be called once at the start: reads the regions of the
  /// manifest over and over for about `seconds`, without looking at the bytes. Bytes per second, 0
  /// where nothing could be read. Later reports compare themselves with it. The caller holds a lease.
  double measure_link(const manifest& m, double seconds);

  /// The generator swaps its buffers: from now on pull into these, of the same shapes and types.
  void retarget(std::vector<tensor_view> tensors);

  struct implementation;

private:
  std::unique_ptr<implementation> impl_;
};

/// The same once: every tensor whole, under its own name.
pull_report pull(const manifest& m, std::span<const tensor_view> staging, transport& carrier,
                 double timeout_s, std::function<bool()> should_stop = {});

} // namespace millrace::weightsync
