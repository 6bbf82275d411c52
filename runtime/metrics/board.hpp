#pragma once

#include "runtime/metrics/metric_set.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// What one actor shows of itself. The actor writes, anyone reads at any time: an actor that is busy
/// for minutes in one step is seen as well as an idle one, and nobody waits for it. `now` is in
/// seconds on the clock that all actors of the process share.
class vitals {
public:
  vitals(std::string kind, std::string name, double now);

  /// It works at something: "decoding", "training". Nothing changes, its age included, when it says
  /// the same again.
  void working(std::string_view state, double now);
  /// It can't go on without `on` (an actor's name, or a kind of actors), for this reason.
  void waiting(std::string_view on, std::string_view reason, double now);
  /// It has taken a message.
  void beat(std::int64_t mailbox, double now);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] actor_snapshot snapshot(double now) const;

  metric_set metrics;

private:
  void enter(std::string_view state, std::string_view on, std::string_view reason, double now);

  std::string name_;
  mutable std::mutex mutex_; ///< guards the texts and `since_`
  std::string state_ = "starting", waits_for_, reason_;
  double since_;
  std::atomic<std::int64_t> mailbox_{0};
  std::atomic<double> beat_at_;
};

/// All actors of a process that show themselves, in the order in which they came. Thread-safe.
/// An actor leaves when it lets go of its vitals: the board holds none.
class snapshot_board {
public:
  /// `ask` sends the actor a message that it answers with beat().
  std::shared_ptr<vitals> add(std::string kind, std::string name, double now,
                              std::function<void()> ask = {});
  /// Asks every actor for a sign of life.
  void ask_all();
  /// Lets go of it; when this has returned, nobody is asking for it any more.
  void leave(std::shared_ptr<vitals>& who);
  [[nodiscard]] std::vector<actor_snapshot> snapshots(double now) const;

  /// The one that all actors of this process are on, unless a test has its own.
  static const std::shared_ptr<snapshot_board>& of_process();

  /// The name that snapshots carry as `node`.
  void set_node(std::string name);
  [[nodiscard]] std::string node() const;

private:
  struct entry {
    std::weak_ptr<vitals> who;
    std::function<void()> ask;
  };

  mutable std::recursive_mutex mutex_; ///< an actor may come to its end while it is asked
  std::string node_ = "local";
  std::vector<entry> entries_;
};

} // namespace millrace
