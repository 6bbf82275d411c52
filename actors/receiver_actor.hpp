#pragma once

#include "actors/introspection.hpp"

#include <functional>
#include <memory>
#include <string>

namespace millrace {

/// How one pull into the staging buffers went.
struct intake_report {
  bool ready = false;
  std::string error; ///< when not ready
  std::int64_t bytes = 0;
  double pull_s = 0; ///< waiting for bytes
  double verify_s = 0;
  double load_s = 0; ///< copies into the engine's tensors, and their layout for computing
  double quantise_s = 0;
  double link_share = 0;          ///< of the measured link bound; 0: not measured
  std::int64_t repeated_reads = 0; ///< shards that were read again, for a wrong checksum or a lost read
  std::int64_t saved_bytes = 0;    ///< that did not have to be pulled (weight_sync.delta)
};

/// Brings the version that a manifest describes into a generator's staging buffers, proven, and
/// lays it out for the swap. Blocks its caller; the generator goes on decoding meanwhile.
class weight_intake {
public:
  virtual ~weight_intake() = default;
  virtual intake_report pull(const std::string& manifest, std::function<void()> on_progress) = 0;
};

struct receiver_options {
  std::string name;
  double request_timeout_s = 5;
  double retry_s = 0.2; ///< between a failed pull and the next try; doubled each time, up to 16 times
  std::int32_t max_failures = 20; ///< pulls in a row that may fail; then it ends, and its generator
  double install_timeout_s = 600; ///< for the generator to take a version that is ready
  std::function<bool(version)> wanted; ///< versions to pull; empty: all
  /// Called for each wanted version that was passed over for a later one, before it was pulled.
  std::function<void(version)> passed_over;
  /// Seconds to wait before each pull (the simulator's wire); empty: none.
  std::function<double()> wire_delay;
};

/// A generator's weight receiver, on a thread of its own: notice → lease → pull → verify →
/// weights_ready (urgent) → the generator swaps and answers → the next. Newer notices replace older
/// ones that were not begun. Ends with an error, and its generator with it, when pulls fail again
/// and again or the generator does not take what is ready: then the supervisor starts both anew.
class receiver_state {
public:
  static inline const char* name = "receiver";

  receiver_state(caf::event_based_actor* self) : self_(self) {
  }
  caf::behavior start(receiver_options options, std::shared_ptr<weight_intake> intake,
                      caf::actor generator, caf::actor publisher);

private:
  void start_pull();
  void pull(const lease_reply& lease);
  void offer(const weights_ready& ready);
  void failed(const std::string& why);
  void give_up_on(version v);
  void ask_again();
  void show(const intake_report& report);

  caf::event_based_actor* self_;
  receiver_options options_;
  std::shared_ptr<weight_intake> intake_;
  caf::actor generator_, publisher_;
  weights_published wanted_{no_version, {}, 0};
  weights_published pulling_{no_version, {}, 0};
  double noticed_at_ = 0;
  version installed_ = no_version; ///< or given up, for a newer one is published
  std::int32_t failures_ = 0;      ///< in a row
  presence seen_;
  bool busy_ = false;
};

caf::behavior receiver_actor(caf::stateful_actor<receiver_state>* self, receiver_options options,
                             std::shared_ptr<weight_intake> intake, caf::actor generator,
                             caf::actor publisher);

} // namespace millrace
