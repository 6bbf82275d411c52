#pragma once

// How an actor shows itself. Each has a `presence`: the metrics of its kind, what it does or waits
// for, and an answer to the one introspection request:
//
//   (inspect_atom) → actor_snapshot
//
// All of it is written to the process's snapshot_board as it happens, so it can be read while the
// actor is busy; the request is only a sign of life.

#include "actors/message_types.hpp"
#include "actors/shell.hpp"
#include "runtime/metrics/board.hpp"

#include <memory>
#include <string>

namespace millrace {

/// For an actor_system_config whose actors show themselves: derive from this as well. Without it
/// (in the simulation, say) they keep their metrics to themselves.
class introspection_config {
public:
  [[nodiscard]] const std::shared_ptr<snapshot_board>& board() const { return board_; }
  /// Another board than one of its own; before the system is made.
  void show_on(std::shared_ptr<snapshot_board> board) { board_ = std::move(board); }

protected:
  introspection_config() = default;
  ~introspection_config() = default;

private:
  std::shared_ptr<snapshot_board> board_ = snapshot_board::of_process();
};

/// The board of this system's actors, or nothing.
std::shared_ptr<snapshot_board> board_of(const caf::actor_system& system);

/// An actor's place on the board, from its start to its end. Lives in the actor's state.
class presence {
public:
  presence() = default;
  ~presence();
  presence(presence&&) = default;
  presence& operator=(presence&& other) noexcept;
  /// `kind` owns metrics in the catalogue; `name` is unique in its process.
  presence(caf::scheduled_actor* self, const std::string& kind, const std::string& name);

  [[nodiscard]] metric_set& metrics() { return vitals_->metrics; }
  void working(std::string_view state) { vitals_->working(state, now_s(self_)); }
  void waiting(std::string_view on, std::string_view reason) {
    vitals_->waiting(on, reason, now_s(self_));
  }
  /// The answer to (inspect_atom).
  actor_snapshot answer();

private:
  caf::scheduled_actor* self_ = nullptr;
  std::shared_ptr<snapshot_board> board_; ///< may be empty
  std::shared_ptr<vitals> vitals_;
};

/// The handler of (inspect_atom), for the actor's behavior. `seen` is in its state.
inline auto answer_introspection(presence& seen) {
  return [&seen](inspect_atom) { return seen.answer(); };
}

} // namespace millrace
