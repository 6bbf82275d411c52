#pragma once

#include "runtime/ids.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace millrace {

/// Where a rollout is. Every one admitted is in exactly one of these, at every moment.
enum class rollout_state : std::uint8_t {
  running,  ///< handed to a generator, or waiting for one
  scoring,  ///< finished; a reward worker has it
  scored,   ///< waits for its siblings
  buffered, ///< in the replay buffer
  training, ///< in the batch being trained, until its version is published
  trained,  ///< ended: consumed by a training step
  dropped,  ///< ended: thrown away by a rule (stale, sibling failed, …)
  filtered, ///< ended: of no use to the loss (no variance in the group, …)
  failed,   ///< ended: beyond its retries
};

inline constexpr std::size_t rollout_state_count = 9;
std::string_view to_string(rollout_state);
constexpr bool has_ended(rollout_state s) { return s >= rollout_state::trained; }

/// Conservation: how many rollouts are in each state, and why they ended there.
struct ledger_totals {
  std::int64_t admitted = 0;
  std::array<std::int64_t, rollout_state_count> in_state{};
  std::map<std::string, std::int64_t> reasons; ///< "dropped: stale" → count

  [[nodiscard]] std::int64_t count(rollout_state s) const {
    return in_state[static_cast<std::size_t>(s)];
  }
  /// Admitted and not ended.
  [[nodiscard]] std::int64_t in_flight() const;
  /// admitted = trained + dropped + filtered + failed + in flight.
  [[nodiscard]] bool balanced() const;
};

/// The one authority on what became of every rollout. Pure bookkeeping, O(1) a call; a transition
/// that cannot be is an invariant_error.
class ledger {
public:
  /// Enters the next sample of `group` as running. Samples enter in order 0, 1, 2, ….
  void admit(rollout_id id);

  /// Moves a rollout on. `reason` is required for dropped, filtered and failed.
  void move(rollout_id id, rollout_state to, std::string_view reason = {});

  /// False for a rollout never admitted, and for one whose group was forgotten.
  [[nodiscard]] bool knows(rollout_id id) const;
  [[nodiscard]] rollout_state state(rollout_id id) const;

  /// Forgets a group all of whose rollouts have ended; the totals stay.
  void forget(std::int64_t group);

  [[nodiscard]] const ledger_totals& totals() const { return totals_; }

  /// Starts from saved totals (resume): all that was in flight is un-admitted, as its owner admits
  /// it again.
  void restore(ledger_totals totals);

private:
  std::unordered_map<std::int64_t, std::vector<rollout_state>> groups_;
  ledger_totals totals_;
};

} // namespace millrace
