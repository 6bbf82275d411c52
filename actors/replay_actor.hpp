#pragma once

#include "actors/introspection.hpp"
#include "replay/buffer.hpp"

#include <memory>

namespace millrace {

struct replay_actor_options {
  buffer_options buffer;
  double request_timeout_s = 5;
  double wait_timeout_s = 30; ///< over_bound: wait gives up waiting after this
};

/// Shell of the replay_buffer. A batch goes to the trainer only once the controller has granted it
/// (claim), so a buffer that dies and comes back, or a message that comes twice, never trains a
/// rollout twice. Joins the controller and the trainer by itself.
///
/// Takes: buffer_groups; batch_request → train_batch, answered when there is one.
class replay_state {
public:
  static inline const char* name = "replay";

  replay_state(caf::event_based_actor* self) : self_(self) {
  }
  caf::behavior start(replay_actor_options options, caf::actor controller,
                      const caf::actor& trainer);

private:
  void insert(buffer_groups& groups);
  caf::result<train_batch> take_request(const batch_request& request);
  void attempt();
  void attempt(std::span<const in_flight_rollout> in_flight);
  void claim(const hand_out_result& offer);
  void granted(const claim_reply& reply, const std::vector<std::int64_t>& offered);
  void deliver();
  void show();

  caf::event_based_actor* self_;
  replay_actor_options options_;
  caf::actor controller_;
  std::unique_ptr<replay_buffer> buffer_;
  version asked_ = no_version; ///< the trainer waits for this version's batch
  double asked_at_ = 0;
  caf::typed_response_promise<train_batch> promise_;
  bool busy_ = false; ///< a question to the controller is under way
  std::int64_t dropped_before_ = 0;
  version shown_out_ = no_version; ///< whose batch was counted as handed out
  presence seen_;
};

caf::behavior replay_actor(caf::stateful_actor<replay_state>* self, replay_actor_options options,
                           caf::actor controller, caf::actor trainer);

} // namespace millrace
