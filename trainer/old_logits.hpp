#pragma once

#include "runtime/config/settings.hpp"
#include "runtime/messages.hpp"
#include "runtime/model/transformer.hpp"
#include "runtime/tensor_view.hpp"
#include "trainer/scoring.hpp"
#include "trainer/statistics.hpp"

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::trainer {

class old_logit_worker;
class rank_mesh;

/// What a strategy may use before the first update of a step.
struct old_logits_request {
  version training_from;
  const model::transformer& network; ///< θ at the start of the step
  const batch_scorer& scorer;
  /// Sequences of the first minibatch: θ has not moved yet when they are trained on, so their
  /// log-probs under θ at the start of the step come with that pass for nothing.
  std::span<const std::size_t> first_minibatch;
  std::span<const std::size_t> others;
  const old_logit_supply& supply; ///< what came with the batch
};

/// Log-probs for the whole step, per sampled token of the batch.
struct old_log_probs {
  /// fp32 [tokens of the batch]; undefined when at_micro_batch() makes them.
  at::Tensor logp;
  /// The first minibatch's are missing in `logp`: take θ's own at its first pass.
  bool first_minibatch_is_current = false;
  /// Tokens by the route that served them.
  std::map<std::string, std::int64_t> served;
  /// By token; empty where one route served them all.
  std::vector<old_logit_route> routes;
  old_logit_costs costs;
  std::vector<std::string> remarks; ///< a fallback, and why
};

/// Sampled tokens of one micro-batch, [M] each.
struct micro_batch_tokens {
  at::Tensor logp_current; ///< θ now, detached
  at::Tensor logp_behaviour;
  at::Tensor versions; ///< int32
};

/// Shares of the trained tokens in the step just made, over all its minibatches.
struct kept_shares {
  double kept = 1;   ///< left by the masks
  double active = 1; ///< of all: left by the masks and not clipped
};

/// Where the proximal policy's log-probs come from. One object per run; the trainer calls, for each
/// step, before_step(), then for each micro-batch at_micro_batch() if before_step() gave no
/// log-probs, then after_step().
class old_logits {
public:
  virtual ~old_logits() = default;

  [[nodiscard]] virtual old_log_probs before_step(const old_logits_request& request) = 0;

  /// \throws invariant_error unless this strategy works by micro-batch
  [[nodiscard]] virtual at::Tensor at_micro_batch(const micro_batch_tokens& tokens,
                                                  version training_from) const;

  /// `network` is θ after the step, of version `now`. Returns whether its history was reset.
  virtual bool after_step(const model::transformer& network, version now,
                          const kept_shares& shares);

  /// Of "dedicated": what computes log-probs off the trainer's path, given θ of version `now`.
  /// Null otherwise, and where an old-logit node does.
  virtual std::shared_ptr<old_logit_worker> worker(const model::transformer& network, version now);

  /// What a checkpoint keeps of it: tensors that are written to a file and filled from one, and the
  /// rest. Both empty for a strategy without memory. Kept versions are not part of it: whoever goes
  /// on from a checkpoint samples anew, with the version that is in it.
  [[nodiscard]] virtual std::vector<tensor_view> tensors() const { return {}; }
  [[nodiscard]] virtual nlohmann::json state() const { return nlohmann::json::object(); }
  virtual void restore(const nlohmann::json& state, const model::transformer& network);
};

/// The strategy of settings.algorithm.old_logits. `network` is the policy that training starts from.
/// With a `mesh` all its ranks have one, and call it alike.
std::unique_ptr<old_logits> make_old_logits(const settings& s, const model::transformer& network,
                                            rank_mesh* mesh = nullptr);

} // namespace millrace::trainer
