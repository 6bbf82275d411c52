#pragma once

#include "runtime/messages.hpp"

#include <memory>
#include <span>

namespace millrace::model {
struct model_config;
}

namespace millrace {
struct settings;
}

namespace millrace::trainer {

class version_ring;

/// What an old-logit worker has and did, for those who watch it.
struct old_logit_progress {
  std::int64_t waiting = 0, done = 0; ///< groups here, by whether anything is left to compute
  std::int64_t versions = 0, memory_bytes = 0, disk_bytes = 0; ///< weights kept
  // Since the start:
  std::int64_t known = 0;      ///< tokens that were trained on and whose log-prob was there
  std::int64_t late = 0;       ///< that were not computed yet
  std::int64_t no_weights = 0; ///< whose version had not come, or was gone
  std::int64_t forwards = 0;
  double busy_s = 0;
};

/// Computes old log-probs off the trainer's path (algorithm.old_logits "dedicated"): groups are
/// annotated as they come out of the reward, while the trainer is at work on other ones, and their
/// log-probs are asked for when they are trained on. Each version is put into a ring by another
/// thread: the trainer, or on a node of its own what fetches the weights there. Tokens of versions
/// younger than any in the ring wait for these. All else here is used by one thread at a time. No
/// torch in sight.
class old_logit_worker {
public:
  /// `shape`: of the network that is trained.
  old_logit_worker(const settings& s, const model::model_config& shape,
                   std::shared_ptr<version_ring> versions);
  ~old_logit_worker();

  /// Takes groups in; a group that is here already changes nothing. There is room for twice what
  /// the admission's budget allows at a time: beyond it those that came first are given up.
  void add(std::span<const scored_group> groups);
  /// Those of its groups that were never added, or were given up.
  [[nodiscard]] std::vector<std::int64_t> unknown(const old_logit_question& asked) const;
  /// The trainer waits for these: their groups come first, and of their tokens only those within η.
  /// Until take() work() is not off its path.
  void want(const old_logit_question& asked);
  /// Whether nothing of it is left to compute, beside what the trainer's own weights serve, of
  /// the groups that are here.
  [[nodiscard]] bool settled(const old_logit_question& asked) const;
  /// Whether there is something to compute with the versions that are there.
  [[nodiscard]] bool can_work() const;
  /// Computes what is missing of one version for the next groups, an eighth of
  /// trainer.micro_batch_tokens or a little more (at least a group), so that it takes not long. False
  /// when there was nothing to do.
  bool work();
  /// What is known, and the seconds that work() took off the trainer's path since the last call. The
  /// groups are forgotten: they are trained on now.
  [[nodiscard]] old_logit_supply take(const old_logit_question& asked);

  [[nodiscard]] std::size_t waiting() const; ///< groups not annotated yet
  [[nodiscard]] old_logit_progress progress() const;

private:
  struct parts;
  std::unique_ptr<parts> parts_;
};

} // namespace millrace::trainer
