#pragma once

#include "runtime/messages.hpp"

#include <memory>
#include <span>

namespace millrace::model {
class transformer;
}

namespace millrace {
struct settings;
}

namespace millrace::trainer {

class version_ring;

/// Computes old log-probs off the trainer's path (algorithm.old_logits "dedicated"): groups are
/// annotated as they come out of the reward, while the trainer is at work on other ones, and their
/// log-probs are asked for when they are trained on. The trainer puts each version into the ring
/// that both share; all else here is used by one thread at a time. No torch in sight.
class old_logit_worker {
public:
  /// `shape` is a network like the one that is trained, and is only looked at now.
  old_logit_worker(const settings& s, const model::transformer& shape,
                   std::shared_ptr<version_ring> versions);
  ~old_logit_worker();

  /// Takes groups in; a group that is here already changes nothing.
  void add(std::span<const scored_group> groups);
  /// Computes what is missing for the next groups, at most algorithm.trainer.micro_batch_tokens, by
  /// one forward per version present. False when there was nothing to do.
  bool work();
  /// What is known of the batch, and the seconds that work() took since the last call. The batch's
  /// groups are forgotten: they are trained on now.
  [[nodiscard]] old_logit_supply take(const train_batch& batch);

  [[nodiscard]] std::size_t waiting() const; ///< groups not annotated yet

private:
  struct parts;
  std::unique_ptr<parts> parts_;
};

} // namespace millrace::trainer
