#pragma once

#include "policy_loss/loss.hpp"
#include "runtime/config/settings.hpp"
#include "runtime/messages.hpp"
#include "trainer/old_logits.hpp"
#include "trainer/scoring.hpp"
#include "trainer/statistics.hpp"

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

namespace millrace::trainer {

/// \throws invariant_error when a sampled token is older than η, or younger than the version being
/// trained from: the last check before the loss
void refuse_stale(const packed_sequences& packed, version training_from, std::int32_t eta);

/// [n] int64
at::Tensor sequence_indices(std::span<const std::size_t> which);

/// The batch of one training step on its way through it: tensors over all sampled tokens ([M], in
/// the order of the rollouts) or all rollouts ([S]), in host memory wherever the model is, and what is
/// counted as it goes. Not movable:
/// its parts refer to one another, and to the groups it was made from.
class step_batch {
public:
  step_batch(version training_from, std::span<const scored_group> groups, const settings& s,
             collectives* data = nullptr);
  step_batch(const step_batch&) = delete;
  step_batch& operator=(const step_batch&) = delete;

  const version from;
  const std::vector<training_sequence> sequences;
  const token_layout layout;
  const batch_scorer scorer;
  const std::vector<std::size_t> everything; ///< 0 … S − 1

  at::Tensor rewards;   ///< [S] fp64
  at::Tensor group_ids; ///< [S] int64
  at::Tensor behaviour; ///< [M] log μ
  at::Tensor versions;  ///< [M] int32
  at::Tensor reference; ///< [M] log-probs of the KL reference; undefined without
  old_log_probs old;
  at::Tensor values;    ///< [M] the critic's, at the start of the step; undefined without

  /// Per token [M], or per sequence [S].
  void set_advantages(const at::Tensor& computed);
  at::Tensor advantages;           ///< [M] fp64
  std::vector<bool> has_advantage; ///< by sequence: some token's is not 0

  /// [M] → [S]
  [[nodiscard]] at::Tensor per_sequence_sum(const at::Tensor& per_token) const;

  // -- where the step is --------------------------------------------------------------------------
  bool first_pass = true;          ///< in the first epoch
  bool before_first_update = true; ///< in the first minibatch of it: θ is as it was at the start
  std::string where;               ///< for remarks
  std::vector<std::size_t> own;    ///< of the minibatch just trained on: this rank's share

  // -- what it counts -----------------------------------------------------------------------------
  step_statistics stats;
  double loss_sum = 0, kl_sum = 0;

  void tally(const policy_loss::outputs& out, const at::Tensor& advantages_of_these);
  void tally_first_pass(const policy_loss::token_logprobs_result& scored, const at::Tensor& places);
  [[nodiscard]] kept_shares kept() const;
  /// Adds up what the data-parallel ranks counted; before kept() and finish_statistics().
  void add_up(collectives& data);
  /// Turns sums into means.
  void finish_statistics();

private:
  void reward_statistics(std::span<const scored_group> groups);
  void staleness_statistics();

  std::int64_t seen_ = 0, kept_ = 0, active_ = 0; ///< tokens, over all epochs
  std::int64_t clipped_positive_ = 0, clipped_negative_ = 0;
  double entropy_sum_ = 0, top1_sum_ = 0;
  at::Tensor first_logp_;  ///< [M] θ at each token's first pass
  at::Tensor first_known_; ///< [M] bool
};

} // namespace millrace::trainer
