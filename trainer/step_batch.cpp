#include "trainer/step_batch.hpp"

#include "policy_loss/diagnostics.hpp"
#include "runtime/error.hpp"
#include "trainer/collectives.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace millrace::trainer {

namespace {

std::vector<std::size_t> first_n(std::size_t n) {
  std::vector<std::size_t> all(n);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

std::int64_t number_of(const at::Tensor& mask) { return mask.sum().item<std::int64_t>(); }

} // namespace

void refuse_stale(const packed_sequences& packed, version training_from, std::int32_t eta) {
  for (auto v : packed.versions) {
    auto age = staleness(training_from, {v});
    ensure(age >= 0 && age <= eta, [&] {
      return "a token sampled at " + to_string(version{v}) + " reached the loss of the step from "
             + to_string(training_from) + ", eta is " + std::to_string(eta);
    });
  }
}

at::Tensor sequence_indices(std::span<const std::size_t> which) {
  return tensor_of(std::vector<std::int64_t>(which.begin(), which.end()));
}

step_batch::step_batch(version training_from, std::span<const scored_group> groups,
                       const settings& s, collectives* data)
    : from(training_from), sequences(training_sequences(groups)), layout(sequences),
      scorer(sequences, layout, s.trainer.micro_batch_tokens, s.trainer.packing,
             s.sampling.temperature > 0 ? s.sampling.temperature : 1.0, s.trainer.share_prompts,
             data),
      everything(first_n(sequences.size())) {
  auto packed = pack(sequences, everything);
  refuse_stale(packed, from, s.rollout.eta);
  static_cast<void>(scorer.split(everything)); // too long a sequence is told before any update
  behaviour = tensor_of(packed.behaviour_logp);
  versions = tensor_of(packed.versions);
  std::vector<double> r;
  std::vector<std::int64_t> g;
  for (const auto& q : sequences) {
    r.push_back(q.reward);
    g.push_back(q.group);
  }
  rewards = at::tensor(r, at::kDouble);
  group_ids = tensor_of(g);
  first_logp_ = at::zeros({layout.tokens()}, at::kFloat);
  first_known_ = at::zeros({layout.tokens()}, at::kBool);
  stats.trained_from = from;
  reward_statistics(groups);
  staleness_statistics();
}

void step_batch::reward_statistics(std::span<const scored_group> groups) {
  stats.rollouts = static_cast<std::int64_t>(sequences.size());
  double sum = 0, squares = 0;
  for (const auto& q : sequences)
    sum += q.reward;
  auto n = std::max<double>(1, static_cast<double>(sequences.size()));
  stats.reward_mean = sum / n;
  for (const auto& q : sequences)
    squares += (q.reward - stats.reward_mean) * (q.reward - stats.reward_mean);
  stats.reward_std = std::sqrt(squares / n);
  for (const auto& group : groups) {
    if (group.rollouts.empty())
      continue;
    ++stats.groups;
    auto same = std::all_of(group.rollouts.begin(), group.rollouts.end(), [&](const auto& r) {
      return r.reward == group.rollouts.front().reward;
    });
    stats.zero_variance_groups += same ? 1 : 0;
  }
}

void step_batch::staleness_statistics() {
  stats.trained_tokens = layout.tokens();
  double sum = 0;
  for (const auto& q : sequences)
    for (auto v : q.versions) {
      if (v < 0)
        continue;
      auto age = staleness(from, {v});
      sum += age;
      if (age >= static_cast<std::int32_t>(stats.staleness.size()))
        stats.staleness.resize(static_cast<std::size_t>(age) + 1, 0);
      ++stats.staleness[static_cast<std::size_t>(age)];
      stats.staleness_max = std::max(stats.staleness_max, age);
    }
  stats.staleness_mean = sum / std::max<double>(1, static_cast<double>(stats.trained_tokens));
}

void step_batch::set_advantages(const at::Tensor& computed) {
  ensure(computed.dim() == 1
           && (computed.size(0) == layout.tokens()
               || computed.size(0) == static_cast<std::int64_t>(sequences.size())),
         "advantages are neither per token nor per rollout");
  auto per_token = computed.to(at::kDouble);
  if (computed.size(0) != layout.tokens()) {
    std::vector<std::int64_t> owner;
    for (std::size_t s = 0; s < sequences.size(); ++s)
      owner.insert(owner.end(),
                   static_cast<std::size_t>(layout.cu_seqlens[s + 1] - layout.cu_seqlens[s]),
                   static_cast<std::int64_t>(s));
    per_token = per_token.index_select(0, tensor_of(owner));
  }
  advantages = per_token.contiguous();
  const auto* a = advantages.const_data_ptr<double>();
  has_advantage.assign(sequences.size(), false);
  double sum = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s)
    for (auto i = layout.cu_seqlens[s]; i < layout.cu_seqlens[s + 1]; ++i) {
      has_advantage[s] = has_advantage[s] || a[i] != 0;
      sum += std::abs(a[i]);
    }
  stats.advantage_abs_mean = sum / std::max<double>(1, static_cast<double>(layout.tokens()));
}

at::Tensor step_batch::per_sequence_sum(const at::Tensor& per_token) const {
  auto values = per_token.to(at::kDouble).contiguous();
  const auto* v = values.const_data_ptr<double>();
  std::vector<double> sums(sequences.size(), 0);
  for (std::size_t s = 0; s < sequences.size(); ++s)
    for (auto i = layout.cu_seqlens[s]; i < layout.cu_seqlens[s + 1]; ++i)
      sums[s] += v[i];
  return at::tensor(sums, at::kDouble);
}

void step_batch::tally(const policy_loss::outputs& out, const at::Tensor& advantages_of_these) {
  at::NoGradGuard no_grad;
  auto clipped = out.keep.logical_and(out.active.logical_not());
  seen_ += out.local.tokens;
  kept_ += number_of(out.keep);
  active_ += number_of(out.active);
  clipped_positive_ += number_of(clipped.logical_and(advantages_of_these.gt(0)));
  clipped_negative_ += number_of(clipped.logical_and(advantages_of_these.lt(0)));
  stats.nonfinite_tokens += static_cast<std::int64_t>(out.stats.get("nonfinite"));
}

void step_batch::tally_first_pass(const policy_loss::token_logprobs_result& scored,
                                  const at::Tensor& places) {
  at::NoGradGuard no_grad;
  first_logp_.index_copy_(0, places, scored.logp.detach().to(first_logp_.device()));
  first_known_.index_fill_(0, places, true);
  entropy_sum_ += scored.entropy.detach().sum().item<double>();
  top1_sum_ += static_cast<double>(number_of(scored.top1));
}

void step_batch::add_up(collectives& data) {
  at::NoGradGuard no_grad;
  std::vector<double> numbers{loss_sum, kl_sum, entropy_sum_, top1_sum_};
  for (auto n : {seen_, kept_, active_, clipped_positive_, clipped_negative_,
                 stats.nonfinite_tokens, stats.micro_batches, stats.processed_tokens})
    numbers.push_back(static_cast<double>(n));
  auto sums = at::tensor(numbers, at::kDouble);
  data.all_reduce(sums);
  const auto* x = sums.const_data_ptr<double>();
  for (auto* to : {&loss_sum, &kl_sum, &entropy_sum_, &top1_sum_})
    *to = *x++;
  for (auto* to : {&seen_, &kept_, &active_, &clipped_positive_, &clipped_negative_,
                   &stats.nonfinite_tokens, &stats.micro_batches, &stats.processed_tokens})
    *to = static_cast<std::int64_t>(*x++);
  // A token's first pass was on one rank; the others have 0 there.
  auto known = first_known_.to(at::kFloat);
  data.all_reduce(first_logp_);
  data.all_reduce(known);
  first_known_ = known.gt(0);
}

kept_shares step_batch::kept() const {
  auto seen = std::max<double>(1, static_cast<double>(seen_));
  return seen_ == 0 ? kept_shares{}
                    : kept_shares{static_cast<double>(kept_) / seen,
                                  static_cast<double>(active_) / seen};
}

void step_batch::finish_statistics() {
  at::NoGradGuard no_grad;
  auto updates = std::max<double>(1, static_cast<double>(stats.updates));
  stats.loss = loss_sum / updates;
  stats.kl_loss = kl_sum / updates;
  stats.grad_norm /= updates;
  stats.clipped_updates /= updates;
  auto seen = std::max<double>(1, static_cast<double>(seen_));
  stats.mask_fraction = seen_ == 0 ? 0 : 1 - static_cast<double>(kept_) / seen;
  stats.clip_fraction_positive = static_cast<double>(clipped_positive_) / seen;
  stats.clip_fraction_negative = static_cast<double>(clipped_negative_) / seen;
  auto known = std::max<double>(1, static_cast<double>(number_of(first_known_)));
  stats.entropy = entropy_sum_ / known;
  stats.top1_fraction = top1_sum_ / known;
  if (layout.tokens() == 0)
    return;
  constexpr double no_cap = 1e30;
  auto mismatch = policy_loss::mismatch_stats(first_logp_, behaviour, first_known_, no_cap, no_cap);
  stats.ess = mismatch.get("ess_frac", 1);
  stats.kl_infer_train = mismatch.get("kl_infer_train_k1");
  stats.kl_infer_train_k3 = mismatch.get("kl_infer_train_k3");
  stats.max_abs_prob_diff = mismatch.get("max_abs_prob_diff");
  if (reference.defined())
    stats.kl_reference = policy_loss::mismatch_stats(reference, first_logp_, first_known_, no_cap,
                                                     no_cap)
                           .get("kl_infer_train_k3");
}

} // namespace millrace::trainer
