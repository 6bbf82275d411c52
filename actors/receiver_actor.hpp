#pragma once

#include "actors/message_types.hpp"

#include <functional>
#include <memory>
#include <string>

namespace millrace {

/// How one pull into the staging buffers went.
struct intake_report {
  bool ready = false;
  std::string error; ///< when not ready
  std::int64_t bytes = 0;
  double pull_s = 0;
  double verify_s = 0;
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
  double retry_s = 0.2; ///< between a failed pull and the next try
  std::function<bool(version)> wanted; ///< versions to pull; empty: all
  /// Seconds to wait before each pull (the simulator's wire); empty: none.
  std::function<double()> wire_delay;
};

/// A generator's weight receiver, on a thread of its own: notice → lease → pull → verify →
/// weights_ready (urgent) → the generator swaps and answers → the next. Newer notices replace older
/// ones that were not begun.
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
  void retry_later();

  caf::event_based_actor* self_;
  receiver_options options_;
  std::shared_ptr<weight_intake> intake_;
  caf::actor generator_, publisher_;
  weights_published wanted_{no_version, {}, 0};
  weights_published pulling_{no_version, {}, 0};
  double noticed_at_ = 0;
  version installed_ = no_version;
  bool busy_ = false;
};

caf::behavior receiver_actor(caf::stateful_actor<receiver_state>* self, receiver_options options,
                             std::shared_ptr<weight_intake> intake, caf::actor generator,
                             caf::actor publisher);

} // namespace millrace
