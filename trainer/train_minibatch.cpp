// A training step's minibatches: forward, loss and backward of their micro-batches, and the update.

#include "trainer/train_step.hpp"

#include "trainer/collectives.hpp"
#include "trainer/parallel.hpp"
#include "trainer/step_batch.hpp"
#include "trainer/stopwatch.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

namespace millrace::trainer {

using policy_loss::counts;

/// What a micro-batch must know of its whole minibatch.
struct reinforcement::shares {
  counts global;
  at::Tensor keep;         ///< bool [tokens of the batch], for losses that choose among all of them
  bool kept_alone = false; ///< the micro-batch is the minibatch: kept counts are its own
};

void reinforcement::train_minibatch(step_batch& b, std::span<const std::size_t> which) {
  std::vector<std::size_t> active, idle;
  for (auto s : which)
    (b.has_advantage[s] || !idle_without_advantage_ ? active : idle).push_back(s);
  auto parts = b.scorer.split_share(idle);
  auto first_with_gradient = parts.size();
  for (auto& part : b.scorer.split_share(active))
    parts.push_back(std::move(part));
  b.own.clear();
  for (const auto& part : parts)
    b.own.insert(b.own.end(), part.begin(), part.end());
  auto finite = true;
  auto loss_before = b.loss_sum, kl_before = b.kl_sum;
  {
    stopwatch stage(b.stats.seconds.forward_backward);
    auto whole = look_at_whole(b, which, parts.size() == 1 && !reducer_);
    if (whole.global.tokens == 0)
      return;
    for (std::size_t i = 0; i < parts.size() && finite; ++i) {
      if (reducer_ && i + 1 == parts.size() && i >= first_with_gradient)
        reducer_->arm();
      finite = train_micro_batch(b, parts[i], whole, i >= first_with_gradient);
    }
    finite = agree(finite);
  }
  stopwatch stage(b.stats.seconds.optimizer);
  if (!finite)
    optimizer_.discard();
  auto update = finite ? optimizer_.step(b.stats.learning_rate) : adamw::outcome{};
  if (update.applied) {
    ++b.stats.updates;
    b.stats.grad_norm += update.grad_norm;
    b.stats.clipped_updates += update.clipped ? 1 : 0;
    return;
  }
  b.loss_sum = loss_before;
  b.kl_sum = kl_before;
  ++b.stats.skipped_updates;
  b.stats.remarks.push_back("training from " + to_string(b.from) + ": the "
                            + (finite ? "gradient" : "loss") + " of " + b.where
                            + " is not finite; its update was skipped");
}

/// Sums the gradients over ranks. Whether the loss is finite on all of them.
bool reinforcement::agree(bool finite) {
  if (reducer_)
    reducer_->finish();
  sum_partial_gradients(network_);
  if (!reducer_)
    return finite;
  auto votes = tensor_of(std::vector<std::int64_t>{finite ? 0 : 1, idle_without_advantage_ ? 0 : 1});
  mesh_->data().all_reduce(votes);
  idle_without_advantage_ = votes[1].item<std::int64_t>() == 0;
  return votes[0].item<std::int64_t>() == 0;
}

/// θ's log-probs of the first minibatch, of which each rank has made its share.
void reinforcement::share_old_logp(step_batch& b, std::span<const std::size_t> which) const {
  if (!reducer_ || !b.old.logp.defined() || !b.old.first_minibatch_is_current)
    return;
  auto own = b.layout.places(b.own), all = b.layout.places(which);
  auto shared = at::zeros_like(b.old.logp).index_copy_(0, own, b.old.logp.index_select(0, own));
  mesh_->data().all_reduce(shared);
  b.old.logp.index_copy_(0, all, shared.index_select(0, all));
}

/// The minibatch's counts; and for losses whose masks or denominators look beyond a micro-batch,
/// one evaluation on all of it, without gradient, first.
reinforcement::shares reinforcement::look_at_whole(step_batch& b,
                                                   std::span<const std::size_t> which,
                                                   bool one_part) const {
  shares whole;
  whole.global.batch = static_cast<std::int64_t>(which.size());
  for (auto s : which) {
    auto tokens = b.layout.cu_seqlens[s + 1] - b.layout.cu_seqlens[s];
    whole.global.tokens += tokens;
    whole.global.sequences += tokens > 0 ? 1 : 0;
  }
  auto needs = loss_->needs();
  whole.kept_alone = needs.kept_counts && one_part;
  if (whole.global.tokens == 0 || one_part || !(needs.kept_counts || needs.batch_whole))
    return whole;
  at::NoGradGuard no_grad;
  auto all = at::zeros({b.layout.tokens()}, at::kFloat);
  b.scorer.fill(all, network_, which);
  auto packed = pack(b.sequences, which);
  auto places = b.layout.places(which);
  auto out = loss_->compute(loss_inputs(b, packed, which, places, all.index_select(0, places)));
  whole.global.kept_tokens = out.local.kept_tokens;
  whole.global.kept_sequences = out.local.kept_sequences;
  if (needs.batch_whole)
    whole.keep = at::zeros({b.layout.tokens()}, at::kBool).index_copy_(0, places, out.keep);
  return whole;
}

policy_loss::inputs reinforcement::loss_inputs(step_batch& b, const packed_sequences& packed,
                                               std::span<const std::size_t> which,
                                               const at::Tensor& places,
                                               const at::Tensor& logp) const {
  // The batch is in host memory; what a micro-batch needs of it goes to where its log-probs are.
  auto chosen = [&](const at::Tensor& of_batch, const at::Tensor& at) {
    return of_batch.index_select(0, at).to(logp.device());
  };
  policy_loss::inputs in;
  in.logp_new = logp;
  in.logp_behav = chosen(b.behaviour, places);
  in.advantages = chosen(b.advantages, places);
  in.rewards = chosen(b.rewards, sequence_indices(which));
  in.cu_seqlens = packed.sampled_cu_seqlens;
  if (b.reference.defined())
    in.logp_ref = chosen(b.reference, places);
  if (!old_logits_)
    return in;
  if (!b.old.logp.defined()) {
    in.logp_prox = old_logits_->at_micro_batch(
      {logp.detach(), in.logp_behav, chosen(b.versions, places)}, b.from);
    return in;
  }
  if (b.old.first_minibatch_is_current && b.before_first_update)
    b.old.logp.index_copy_(0, places, logp.detach().to(b.old.logp.device()));
  in.logp_prox = chosen(b.old.logp, places);
  return in;
}

/// False when the loss is not finite. Without `with_gradient` the network is only evaluated, and
/// the loss's gradient at its log-probs is expected to be 0; if it isn't, once more with gradient.
bool reinforcement::train_micro_batch(step_batch& b, std::span<const std::size_t> which,
                                      const shares& whole, bool with_gradient) {
  auto packed = b.scorer.packed(which);
  refuse_stale(packed, b.from, settings_.rollout.eta);
  policy_loss::token_logprobs_result scored;
  {
    at::AutoGradMode mode(with_gradient);
    scored = score_tokens(network_, packed, b.scorer.temperature());
  }
  auto logp = with_gradient ? scored.logp : scored.logp.detach().requires_grad_();
  auto places = b.layout.places(which);
  auto in = loss_inputs(b, packed, which, places, logp);
  if (whole.keep.defined())
    in.keep = whole.keep.index_select(0, places).to(logp.device());
  in.global = whole.global;
  if (whole.kept_alone) {
    in.global.reset();
    auto local = loss_->compute(in).local;
    in.global = whole.global;
    in.global->kept_tokens = local.kept_tokens;
    in.global->kept_sequences = local.kept_sequences;
  }
  auto out = loss_->compute(in);
  auto total = out.loss;
  auto kl = 0.0;
  if (kl_) {
    in.keep = at::Tensor();
    in.global = whole.global;
    auto penalty = kl_->compute(in).loss;
    kl = penalty.item<double>();
    total = total.add(penalty);
  }
  auto value = total.item<double>();
  if (!std::isfinite(value))
    return false;
  total.backward();
  if (!with_gradient && logp.grad().defined() && logp.grad().count_nonzero().item<int64_t>() > 0) {
    idle_without_advantage_ = false;
    return train_micro_batch(b, which, whole, true);
  }
  b.loss_sum += value;
  b.kl_sum += kl;
  ++b.stats.micro_batches;
  b.stats.processed_tokens += static_cast<std::int64_t>(packed.tokens.size());
  b.tally(out, in.advantages);
  if (b.first_pass)
    b.tally_first_pass(scored, places);
  return true;
}

} // namespace millrace::trainer
