#pragma once

#include "runtime/config/settings.hpp"
#include "runtime/model/transformer.hpp"
#include "runtime/tensor_view.hpp"
#include "trainer/adamw.hpp"
#include "trainer/batching.hpp"
#include "trainer/scoring.hpp"
#include "trainer/statistics.hpp"

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <optional>
#include <span>
#include <vector>

namespace millrace::trainer {

class rank_mesh;

/// Values of the states that sampled tokens were drawn in: V(all tokens before it). A linear head,
/// zero at first, on the last hidden states of the policy (its gradient goes no further: the policy
/// learns from advantages alone), or of a network of its own, which starts as the policy and learns
/// with the head. Its loss is PPO's clipped value loss (policy_loss/value_loss.hpp), its optimiser
/// AdamW with the trainer's options.
class critic {
public:
  /// `policy` is what training starts from. With a `mesh` all its ranks have one and call it alike,
  /// each for its share of the batch.
  critic(const settings& s, const model::transformer& policy, rank_mesh* mesh = nullptr);

  /// fp32 [tokens of the batch], without gradient; `policy` as it is now.
  [[nodiscard]] at::Tensor values(const model::transformer& policy, const batch_scorer& scorer,
                                  std::span<const std::size_t> all) const;

  /// One update per minibatch towards `returns` (fp64 [tokens of the batch]), `old_values` being
  /// those at the start. Fills the value statistics. An update that isn't finite is skipped and
  /// remarked on.
  void update(const model::transformer& policy, const batch_scorer& scorer,
              const partition& minibatches, const at::Tensor& returns,
              const at::Tensor& old_values, double learning_rate, step_statistics& stats);

  /// For checkpoints, as those of the trainer.
  [[nodiscard]] std::vector<tensor_view> tensors() const;
  [[nodiscard]] nlohmann::json state() const;
  void restore(const nlohmann::json& state);

private:
  [[nodiscard]] at::Tensor forward(const model::transformer& policy,
                                   const packed_sequences& packed) const;
  void add_up_gradients();
  bool apply(double learning_rate, step_statistics& stats);

  settings settings_;
  rank_mesh* mesh_;
  std::optional<model::transformer> network_; ///< of its own, or the policy's is used
  std::optional<adamw> optimizer_;            ///< of that
  at::Tensor head_;                           ///< [d + 1]: weights and bias
  at::Tensor mean_, square_;                  ///< AdamW's moments of the head
  std::int64_t updates_ = 0;
};

} // namespace millrace::trainer
