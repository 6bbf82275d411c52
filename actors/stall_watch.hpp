#pragma once

#include "runtime/introspection.hpp"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace millrace {

/// One edge of the wait-for graph: `owner` can't go on without `on`.
struct wait_edge {
  std::string owner; ///< an actor
  std::string state; ///< what it does, when it waits for nobody
  std::string on;    ///< an actor, a kind of actors, or empty: it is at work itself
  std::string reason;
  double age = 0;    ///< seconds
  double silent = 0; ///< seconds since it last took a message
};

/// Why nothing is trained.
struct stall_report {
  double idle_s = 0;      ///< since the last training step, or since the start
  std::int64_t steps = 0; ///< trained so far
  /// From the trainer on, each followed by whom it waits for, as far as that leads; then the others.
  std::vector<wait_edge> waits;
  /// Where the trainer's waits end: an actor that is at work, one that is missing, or a circle.
  std::string root;
  std::string rollouts; ///< how many are in which state, and how many ended how

  /// Several lines for the log, `millrace top` and /healthz.
  [[nodiscard]] std::string text() const;
};

/// The waits of these actors, ordered for reading. Where a name is not among them (an actor died, or
/// its node is away), the root says so.
[[nodiscard]] stall_report wait_graph(std::span<const actor_snapshot> actors);

/// Notices that nothing has been trained for a while, and says who waits for whom. Pure: snapshots
/// and the time in, a report out.
class stall_watch {
public:
  /// `limit_s` seconds without a step are a stall; 0 or less: never. `now` in seconds, monotonic.
  stall_watch(double limit_s, double now) : limit_s_(limit_s), progress_at_(now) {}

  /// A report at the beginning of a stall, and again each time that it has lasted twice as long.
  std::optional<stall_report> look(std::span<const actor_snapshot> actors, double now);

  /// Seconds since the last step, as of the last look.
  [[nodiscard]] double idle_s() const { return looked_at_ - progress_at_; }
  [[nodiscard]] bool stalled() const { return limit_s_ > 0 && looked_at_ - progress_at_ >= limit_s_; }

private:
  double limit_s_;
  double progress_at_;
  double looked_at_ = progress_at_;
  double next_report_s_ = 0; ///< idle time at which to speak again; 0: no stall
  double steps_ = -1;
};

} // namespace millrace
