#pragma once

#include "replay/batch.hpp"
#include "replay/group_set.hpp"
#include "runtime/config/settings.hpp" // over_bound
#include "runtime/messages.hpp"

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace millrace {

struct buffer_options {
  /// Rollouts held at most, those in the batch being trained included. From (η + 1)·B on, the
  /// budget of admission never meets a full buffer; below that, a step that waits for a rollout
  /// could find no room for it, so `over_bound: wait` asks for at least as much.
  std::int64_t capacity = 1;
  std::int64_t batch_size = 1; ///< B: rollouts per training step
  std::int64_t group_size = 1; ///< n: rollouts in a group, at most
  std::int32_t eta = 0;        ///< η: the largest staleness that may be trained on
  millrace::over_bound over_bound = millrace::over_bound::mask;

  bool operator==(const buffer_options&) const = default;
};

enum class insert_result : std::uint8_t {
  inserted,
  already_known, ///< held, handed out, trained or dropped before: nothing was done
  full,          ///< refused: offer it again after the next confirmation
};

struct hand_out_result {
  enum class state : std::uint8_t {
    ready,       ///< `batch` may be trained on
    too_few,     ///< `missing` more rollouts are needed
    waiting,     ///< `wait_for` must finish first (over_bound: wait)
    unconfirmed, ///< `batch` was handed out for an earlier version and is not confirmed yet
    outdated,    ///< a batch for this version, or a later one, was confirmed
  };
  state what = state::too_few;
  std::shared_ptr<const training_batch> batch;
  std::int64_t missing = 0;
  std::vector<rollout_id> wait_for;
  /// Groups that will never be handed out because they are beyond η, or were sampled by a version
  /// that is lost: all since the last confirmation, so that a lost answer loses none of them.
  std::vector<std::int64_t> dropped;
};

/// Everything that happened since the buffer was made (or since the run began, when restored).
struct buffer_counters {
  std::int64_t inserted = 0;      ///< rollouts
  std::int64_t already_known = 0; ///< groups offered again
  std::int64_t refused = 0;       ///< groups offered to a full buffer
  std::int64_t confirmed = 0;     ///< rollouts trained on
  std::int64_t dropped = 0;       ///< rollouts in groups that were dropped
  std::int64_t masked = 0;        ///< rollouts trained on without their oldest tokens
  std::int64_t masked_tokens = 0;
  std::int64_t waits = 0; ///< hand-outs that had to wait for a rollout in flight

  bool operator==(const buffer_counters&) const = default;
};

/// The bounded buffer between reward and trainer: groups in, batches out, oldest first. State in,
/// decision out: no clock, no thread, no file. Nothing here is linear in what it holds: insert is
/// O(tokens of the group + log n), hand_out O(B log n).
///
/// Order: a group is as old as the oldest sampled token in it; ties go by group id. A batch
/// consists of whole groups, because the members of a group are compared with one another: the
/// oldest ones as long as they fit into B. It is ready when no further group of n would fit, so it
/// has exactly B rollouts where all groups have n and B is a multiple of n.
///
/// η is enforced per token at hand-out, from version v on, by `over_bound`:
///   mask  tokens older than v − η are named in the batch and must not reach the loss. A group in
///         which no token is left is dropped.
///   drop  a group with any such token is dropped as a whole, for the same reason as above.
///   wait  a rollout in flight that holds a token of version v − η would exceed η at the next step,
///         so this step waits for its group first, unless B older rollouts are there already.
///         Whatever comes late nonetheless is masked.
///
/// Exactly once: a batch belongs to a version. Until confirmed(v), hand_out(v) gives the same batch
/// again and no other version gets any; after it, the batch is gone for good, and its groups are
/// never accepted again.
class replay_buffer {
public:
  /// \throws user_error when the options contradict one another
  explicit replay_buffer(buffer_options options);

  insert_result insert(scored_group group);

  /// The batch to train on from version `from`. `in_flight` matters only to `over_bound: wait`;
  /// pass none to go on without waiting (its deadline passed).
  hand_out_result hand_out(version from, std::span<const in_flight_rollout> in_flight = {});

  /// The step from `from` is done and its version published: its batch is gone for good. True when
  /// that is so, now or since an earlier call; false when no batch was out for it.
  bool confirmed(version from);

  // -- recovery -----------------------------------------------------------------------------------
  /// Takes a group that had been inserted before a crash, whatever the limits are now.
  void readmit(scored_group group);
  /// Makes exactly these groups the batch of `from`, in place of any batch that is out: when
  /// someone else is the authority on who got what. Returns the groups that are missing here; the
  /// batch is out only when there are none.
  std::vector<std::int64_t> adopt(version from, std::span<const std::int64_t> groups);
  /// The batch that is out was not trained on, and will be asked for anew. False when none is out.
  bool take_back();
  /// Drops these groups; those not waiting here are ignored.
  void drop(std::span<const std::int64_t> groups);
  /// The trainer starts (again) from version `from`: it has trained the batch that is out when that
  /// one's version is older, and not when it is the same or younger. Groups with tokens of versions
  /// younger than `from` are dropped: those versions are lost, and their numbers will be reused.
  void resume(version from);

  /// All of the state, as bytes that restore() reads on any machine.
  [[nodiscard]] std::string snapshot() const;
  /// \throws user_error when the bytes are damaged; `where` names their origin
  static replay_buffer restore(buffer_options options, std::string_view bytes,
                               const std::string& where);

  // -- looking in ---------------------------------------------------------------------------------
  [[nodiscard]] const buffer_options& options() const { return options_; }
  [[nodiscard]] const buffer_counters& counters() const { return counters_; }
  /// Rollouts waiting to be handed out.
  [[nodiscard]] std::int64_t depth() const { return depth_; }
  /// Rollouts of the batch that is out.
  [[nodiscard]] std::int64_t in_training() const { return out_ ? out_->rollouts : 0; }
  [[nodiscard]] std::int64_t room() const { return options_.capacity - depth_ - in_training(); }
  [[nodiscard]] const std::shared_ptr<const training_batch>& batch_out() const { return out_; }
  [[nodiscard]] bool knows(std::int64_t group) const { return known_.contains(group); }
  /// Of the rollouts waiting, as if trained from `now`. O(distinct versions).
  [[nodiscard]] staleness_histogram staleness_if_trained(version now) const;
  /// The ids of the groups waiting, oldest first. O(n): for inspection and tests.
  [[nodiscard]] std::vector<std::int64_t> waiting_groups() const;
  /// Groups dropped since the last confirmation.
  [[nodiscard]] const std::vector<std::int64_t>& dropped() const { return dropped_; }

private:
  struct age {
    std::int32_t oldest, youngest; ///< versions of a rollout's sampled tokens; −1 without any
  };
  struct entry {
    std::shared_ptr<const scored_group> group;
    std::vector<age> ages; ///< of each rollout
    std::int32_t oldest, youngest;
  };
  using key = std::pair<std::int32_t, std::int64_t>; ///< oldest version, group id

  [[nodiscard]] static entry make_entry(std::shared_ptr<const scored_group> group);
  void enqueue(std::int64_t group, entry e);
  entry dequeue(std::int64_t group);
  void tally(const entry& e, std::int64_t by);
  void sweep(version from);
  [[nodiscard]] bool must_go(const entry& e, std::int32_t bound) const;
  [[nodiscard]] std::vector<rollout_id> due(version from,
                                            std::span<const in_flight_rollout> in_flight) const;
  [[nodiscard]] std::vector<std::int64_t> oldest_batch() const;
  void mask_old_tokens(training_batch& batch, const entry& e) const;

  buffer_options options_;
  std::set<key> order_; ///< of the groups waiting
  std::unordered_map<std::int64_t, entry> waiting_;
  std::int64_t depth_ = 0;
  std::shared_ptr<const training_batch> out_;
  version last_confirmed_ = no_version;
  group_set known_;
  std::vector<std::int64_t> dropped_;
  buffer_counters counters_;
  std::int32_t swept_to_ = 0;       ///< groups older than this were looked at …
  std::vector<std::int64_t> late_;  ///< … but for these, which came after
  std::map<std::int32_t, std::int64_t> oldest_, youngest_, spans_; ///< rollouts waiting
};

} // namespace millrace
