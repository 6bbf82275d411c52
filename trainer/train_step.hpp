#pragma once

#include "policy_loss/advantage.hpp"
#include "policy_loss/loss.hpp"
#include "policy_loss/plugins.hpp"
#include "runtime/config/settings.hpp"
#include "runtime/messages.hpp"
#include "runtime/model/transformer.hpp"
#include "trainer/adamw.hpp"
#include "trainer/gradient_reducer.hpp"
#include "trainer/learning_rate.hpp"
#include "trainer/old_logits.hpp"
#include "trainer/statistics.hpp"

#include <nlohmann/json.hpp>

#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace millrace::trainer {

class critic;
class rank_mesh;
class step_batch;

/// What settings may name: the built-in functions and those of plugins.
struct registries {
  policy_loss::loss_registry losses = policy_loss::known_losses();
  policy_loss::advantage_registry advantages = policy_loss::known_advantages();
};

/// Whether loss, advantage and KL exist and take their parameters. \throws user_error
void check_names(const settings& s, const registries& known = {});

/// Policy-gradient training, one step at a time. A step takes the batch of one version and makes
/// the parameters of the next:
///
///   advantages of the whole batch → old log-probs → for each epoch, for each minibatch of whole
///   groups: forward and backward by micro-batches under the token budget, each loss a share of its
///   minibatch's (normalised by the minibatch's token count, so that any split gives the same sum)
///   → clip → AdamW
///
/// Nothing is random but the split into minibatches, which depends on (seed, version, epoch). With
/// the same thread count, the same batch gives the same parameters bit for bit.
class reinforcement {
public:
  /// The network must outlive this, is the policy of version 0 (and the KL reference), and its
  /// gradients are this one's. \throws user_error when the algorithm's settings are wrong
  /// With a `mesh`, all its ranks have one, and call step() with the same batch: each trains on its
  /// share, and all get the same parameters and statistics.
  reinforcement(model::transformer& network, const settings& s, const registries& known = {},
                rank_mesh* mesh = nullptr);
  ~reinforcement();

  /// Trains on `groups` from version `from`. A minibatch whose loss or gradient is not finite is
  /// skipped, counted and remarked on. \throws invariant_error when a sampled token's staleness is
  /// above η or below 0 (then nothing has changed) \throws user_error when a sequence exceeds the
  /// token budget
  /// `supply` is what old log-probs may be taken from beside the batch.
  step_statistics step(version from, std::span<const scored_group> groups,
                       const old_logit_supply& supply = {});

  /// What computes old log-probs beside the steps, which begin at version `now`; null unless
  /// algorithm.old_logits is "dedicated". It may outlive this.
  std::shared_ptr<old_logit_worker> old_logit_helper(version now);

  /// Tensors to be written to a checkpoint or filled from one, and what else belongs to it.
  [[nodiscard]] std::vector<tensor_view> tensors() const;
  /// Those beside the optimiser's.
  [[nodiscard]] std::vector<tensor_view> other_tensors() const;
  [[nodiscard]] nlohmann::json state() const;
  [[nodiscard]] adamw& optimizer() { return optimizer_; }
  /// After tensors() and the network's parameters were filled.
  void restore(const nlohmann::json& state);

private:
  struct shares;

  void score_reference(step_batch& b) const;
  void advantages(step_batch& b, const partition& minibatches);
  void prepare(step_batch& b, const partition& minibatches, const old_logit_supply& supply);
  void train_minibatch(step_batch& b, std::span<const std::size_t> which);
  shares look_at_whole(step_batch& b, std::span<const std::size_t> which, bool one_part) const;
  bool agree(bool finite);
  void share_old_logp(step_batch& b, std::span<const std::size_t> which) const;
  policy_loss::inputs loss_inputs(step_batch& b, const packed_sequences& packed,
                                  std::span<const std::size_t> which, const at::Tensor& places,
                                  const at::Tensor& logp) const;
  bool train_micro_batch(step_batch& b, std::span<const std::size_t> which, const shares& whole,
                         bool with_gradient);
  void finish(step_batch& b);

  model::transformer& network_;
  rank_mesh* mesh_;
  settings settings_;
  learning_rate_schedule schedule_;
  std::unique_ptr<policy_loss::loss> loss_;
  std::unique_ptr<policy_loss::loss> kl_;
  std::unique_ptr<policy_loss::advantage> advantage_;
  std::unique_ptr<old_logits> old_logits_; ///< null where the loss has no use for it
  std::optional<model::transformer> reference_;
  std::unique_ptr<critic> critic_; ///< null where there is none
  adamw optimizer_;
  std::unique_ptr<gradient_reducer> reducer_; ///< where there is more than one data-parallel rank
  /// Whether sequences without advantage may be spared the backward pass; unlearnt when the loss
  /// turns out to have a gradient there.
  bool idle_without_advantage_ = true;
};

} // namespace millrace::trainer
