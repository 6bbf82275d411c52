#include "actors/introspection.hpp"

namespace millrace {

std::shared_ptr<snapshot_board> board_of(const caf::actor_system& system) {
  const auto* shown = dynamic_cast<const introspection_config*>(&system.config());
  return shown != nullptr ? shown->board() : nullptr;
}

presence::presence(caf::scheduled_actor* self, const std::string& kind, const std::string& name)
  : self_(self), board_(board_of(self->system())) {
  if (!board_) {
    vitals_ = std::make_shared<vitals>(kind, name, now_s(self));
    return;
  }
  // Urgent, so that a full mailbox shows as a depth and not as a silent actor. Held weakly: being
  // on the board keeps no actor alive.
  auto ask = [address = caf::actor_cast<caf::actor_addr>(self)] {
    if (auto actor = caf::actor_cast<caf::actor>(address))
      caf::anon_send<caf::message_priority::high>(actor, inspect_atom::value);
  };
  vitals_ = board_->add(kind, name, now_s(self), std::move(ask));
}

presence::~presence() {
  if (board_ && vitals_)
    board_->leave(vitals_);
}

presence& presence::operator=(presence&& other) noexcept {
  std::swap(self_, other.self_);
  std::swap(board_, other.board_);
  std::swap(vitals_, other.vitals_);
  return *this;
}

actor_snapshot presence::answer() {
  auto now = now_s(self_);
  vitals_->beat(static_cast<std::int64_t>(self_->mailbox().size()), now);
  auto out = vitals_->snapshot(now);
  if (board_)
    out.node = board_->node();
  return out;
}

} // namespace millrace
