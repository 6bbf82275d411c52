#include "trainer/train_step.hpp"

#include "runtime/error.hpp"
#include "trainer/critic.hpp"
#include "trainer/collectives.hpp"
#include "trainer/parallel.hpp"
#include "trainer/step_batch.hpp"
#include "trainer/stopwatch.hpp"
#include "trainer/tensor_memory.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <numeric>

namespace millrace::trainer {

using policy_loss::counts;

namespace {

std::string name_of(loss_aggregation a) {
  return std::string(names(a)[static_cast<std::size_t>(a)]);
}

nlohmann::json loss_params(const algorithm_settings& a) {
  auto params = a.loss.params;
  if (!params.contains("agg"))
    params["agg"] = name_of(a.aggregation);
  return params;
}

std::unique_ptr<policy_loss::loss> make_kl(const algorithm_settings& a, const registries& known) {
  if (a.kl.coefficient == 0 || a.kl.place != kl_place::loss)
    return nullptr;
  auto params = loss_params(a);
  nlohmann::json kl{{"beta", a.kl.coefficient},
                    {"estimator", names(a.kl.estimator)[static_cast<std::size_t>(a.kl.estimator)]},
                    {"agg", params["agg"]}};
  if (params.contains("fixed_length"))
    kl["fixed_length"] = params["fixed_length"];
  return policy_loss::make_loss("kl_in_loss", kl, known.losses, "algorithm.kl");
}

adamw_options optimizer_options(const trainer_settings& t) {
  return {t.beta1, t.beta2, t.eps, t.weight_decay, t.grad_clip};
}

} // namespace

/// What a micro-batch must know of its whole minibatch.
struct reinforcement::shares {
  counts global;
  at::Tensor keep;         ///< bool [tokens of the batch], for losses that choose among all of them
  bool kept_alone = false; ///< the micro-batch is the minibatch: kept counts are its own
};

void check_names(const settings& s, const registries& known) {
  policy_loss::make_loss(s.algorithm.loss.name, loss_params(s.algorithm), known.losses);
  make_kl(s.algorithm, known);
  policy_loss::make_advantage(s.algorithm.advantage.name, s.algorithm.advantage.params,
                              known.advantages);
}

reinforcement::reinforcement(model::transformer& network, const settings& s,
                             const registries& known, rank_mesh* mesh)
    : network_(network), mesh_(mesh), settings_(s),
      schedule_{s.trainer.lr, s.trainer.lr_warmup_steps, s.run.steps, s.trainer.lr_schedule,
                s.trainer.lr_floor},
      loss_(policy_loss::make_loss(s.algorithm.loss.name, loss_params(s.algorithm), known.losses)),
      kl_(make_kl(s.algorithm, known)),
      advantage_(policy_loss::make_advantage(s.algorithm.advantage.name,
                                             s.algorithm.advantage.params, known.advantages)),
      optimizer_(network, optimizer_options(s.trainer), mesh, s.trainer.parallel.zero1) {
  if (mesh && mesh->data().size() > 1)
    reducer_ = std::make_unique<gradient_reducer>(network, mesh->data(), s.trainer.parallel.zero1);
  const auto& kl = s.algorithm.kl;
  auto wants_reference = kl.coefficient != 0 || loss_->needs().ref;
  if (wants_reference && kl.reference == kl_reference::none)
    throw user_error("algorithm.kl.reference: found \"none\", but "
                     + (kl.coefficient != 0 ? std::string("algorithm.kl.coefficient is not 0")
                                            : "the loss " + s.algorithm.loss.name + " needs one")
                     + "; set it to \"initial\"");
  if (s.algorithm.critic.kind != critic_kind::none)
    critic_ = std::make_unique<critic>(s, network, mesh);
  if (advantage_->needs().values && !critic_)
    throw user_error("algorithm.advantage: \"" + s.algorithm.advantage.name
                     + "\" needs the values of a critic; set algorithm.critic.kind to \"head\" or "
                       "\"model\", or use grpo, rloo, mean_baseline or reinforce_plus_plus");
  if (wants_reference)
    reference_ = network.frozen_copy();
  if (loss_->needs().prox)
    old_logits_ = make_old_logits(s, network, mesh);
}

reinforcement::~reinforcement() = default;

step_statistics reinforcement::step(version from, std::span<const scored_group> groups,
                                    const old_logit_supply& supply) {
  step_batch b(from, groups, settings_, mesh_ ? &mesh_->data() : nullptr);
  auto waited_before = mesh_ ? mesh_->waited_s() : 0;
  {
    stopwatch all(b.stats.seconds.total);
    {
      stopwatch stage(b.stats.seconds.old_logits);
      score_reference(b);
    }
    auto epochs = std::max(settings_.trainer.epochs, 1);
    auto split = [&](std::int32_t epoch) {
      return minibatches(b.sequences, settings_.trainer.minibatches,
                         settings_.seed + static_cast<std::uint64_t>(from.value)
                                            * static_cast<std::uint64_t>(epochs)
                           + static_cast<std::uint64_t>(epoch));
    };
    auto parts = split(0);
    b.stats.learning_rate = schedule_.at(from.value);
    advantages(b, parts);
    prepare(b, parts, supply);
    for (std::int32_t epoch = 0; epoch < epochs; ++epoch) {
      if (epoch > 0)
        parts = split(epoch);
      for (std::size_t m = 0; m < parts.size(); ++m) {
        b.first_pass = epoch == 0;
        b.before_first_update = epoch == 0 && m == 0;
        b.where = "minibatch " + std::to_string(m + 1) + " of " + std::to_string(parts.size())
                  + (epochs > 1 ? ", epoch " + std::to_string(epoch + 1) : "");
        train_minibatch(b, parts[m]);
        if (b.before_first_update && epochs > 1)
          share_old_logp(b, parts[m]);
      }
    }
    finish(b);
  }
  if (mesh_)
    b.stats.seconds.rank_wait = mesh_->waited_s() - waited_before;
  return std::move(b.stats);
}

/// Log-probs of the frozen reference.
void reinforcement::score_reference(step_batch& b) const {
  if (!reference_)
    return;
  b.reference = at::zeros({b.layout.tokens()}, at::kFloat);
  b.scorer.fill(b.reference, *reference_, b.everything);
}

/// And the critic's updates, which see the values of the step's start like the advantages do.
void reinforcement::advantages(step_batch& b, const partition& minibatches) {
  {
    stopwatch stage(b.stats.seconds.critic);
    if (critic_)
      b.values = critic_->values(network_, b.scorer, b.everything);
  }
  at::NoGradGuard no_grad;
  stopwatch stage(b.stats.seconds.advantage);
  policy_loss::advantage_inputs in;
  in.rewards = b.rewards;
  in.group_ids = b.group_ids;
  in.mask = at::ones({b.layout.tokens()}, at::kBool);
  in.cu_seqlens = b.layout.cu_seqlens;
  const auto& kl = settings_.algorithm.kl;
  if (kl.coefficient != 0 && kl.place == kl_place::reward) {
    auto shaped = policy_loss::kl_reward(b.behaviour, b.reference, in,
                                         {.coefficient = kl.coefficient,
                                          .estimator = static_cast<policy_loss::kl_estimator>(
                                            kl.estimator)});
    in.token_rewards = shaped.token_rewards;
    in.rewards = b.per_sequence_sum(shaped.token_rewards);
  }
  in.values = b.values;
  if (advantage_->needs().log_ratio) {
    auto logp = at::zeros({b.layout.tokens()}, at::kFloat);
    b.scorer.fill(logp, network_, b.everything);
    in.log_ratio = logp - b.behaviour;
  }
  auto computed = advantage_->compute(in);
  b.set_advantages(computed.advantages);
  if (!critic_ || !computed.returns.defined() || minibatches.empty())
    return;
  stopwatch learning(b.stats.seconds.critic);
  at::AutoGradMode with_gradient(true);
  critic_->update(network_, b.scorer, minibatches, computed.returns, b.values,
                  b.stats.learning_rate, b.stats);
}

/// Old log-probs that don't have to wait for the micro-batches.
void reinforcement::prepare(step_batch& b, const partition& minibatches,
                            const old_logit_supply& supply) {
  if (!old_logits_)
    return;
  stopwatch stage(b.stats.seconds.old_logits);
  std::vector<std::size_t> others;
  for (std::size_t m = 1; m < minibatches.size(); ++m)
    others.insert(others.end(), minibatches[m].begin(), minibatches[m].end());
  // An empty batch makes a version too, which others may be sampled with.
  std::span<const std::size_t> first;
  if (!minibatches.empty())
    first = minibatches.front();
  b.old = old_logits_->before_step({b.from, network_, b.scorer, first, others, supply});
  b.stats.old_logits_served = b.old.served;
  b.stats.old_logits = b.old.costs;
  if (!b.old.routes.empty()) {
    const auto* logp = b.old.logp.const_data_ptr<float>();
    b.stats.old_logp.assign(logp, logp + b.old.logp.numel());
    b.stats.old_logit_routes = std::move(b.old.routes);
  }
  for (auto& remark : b.old.remarks)
    b.stats.remarks.push_back(std::move(remark));
}

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
  policy_loss::inputs in;
  in.logp_new = logp;
  in.logp_behav = b.behaviour.index_select(0, places);
  in.advantages = b.advantages.index_select(0, places);
  in.rewards = b.rewards.index_select(0, sequence_indices(which));
  in.cu_seqlens = packed.sampled_cu_seqlens;
  if (b.reference.defined())
    in.logp_ref = b.reference.index_select(0, places);
  if (!old_logits_)
    return in;
  if (!b.old.logp.defined()) {
    in.logp_prox = old_logits_->at_micro_batch(
      {logp.detach(), in.logp_behav, b.versions.index_select(0, places)}, b.from);
    return in;
  }
  if (b.old.first_minibatch_is_current && b.before_first_update)
    b.old.logp.index_copy_(0, places, logp.detach());
  in.logp_prox = b.old.logp.index_select(0, places);
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
    in.keep = whole.keep.index_select(0, places);
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

void reinforcement::finish(step_batch& b) {
  const auto& kl = settings_.algorithm.kl;
  if (reference_ && kl.reference == kl_reference::moving
      && b.from.next().value % kl.move_every == 0)
    reference_->copy_from(network_);
  if (reducer_)
    b.add_up(mesh_->data());
  b.finish_statistics();
  if (old_logits_)
    b.stats.ewma_reset = old_logits_->after_step(network_, b.from.next(), b.kept());
}

std::shared_ptr<old_logit_worker> reinforcement::old_logit_helper(version now) {
  return old_logits_ ? old_logits_->worker(network_, now) : nullptr;
}

std::vector<tensor_view> reinforcement::tensors() const {
  auto views = optimizer_.state();
  for (auto& v : other_tensors())
    views.push_back(std::move(v));
  return views;
}

std::vector<tensor_view> reinforcement::other_tensors() const {
  std::vector<tensor_view> views;
  if (old_logits_)
    for (auto& v : old_logits_->tensors())
      views.push_back(std::move(v));
  if (critic_)
    for (auto& v : critic_->tensors())
      views.push_back(std::move(v));
  if (reference_)
    for (auto& v : reference_->views()) {
      v.name = "reference/" + v.name;
      views.push_back(std::move(v));
    }
  return views;
}

nlohmann::json reinforcement::state() const {
  return {{"updates", optimizer_.updates()},
          {"old_logits", old_logits_ ? old_logits_->state() : nlohmann::json::object()},
          {"critic", critic_ ? critic_->state() : nlohmann::json::object()},
          {"idle_without_advantage", idle_without_advantage_}};
}

void reinforcement::restore(const nlohmann::json& state) {
  optimizer_.set_updates(state.at("updates").get<std::int64_t>());
  idle_without_advantage_ = state.at("idle_without_advantage").get<bool>();
  if (critic_)
    critic_->restore(state.at("critic"));
  if (old_logits_)
    old_logits_->restore(state.at("old_logits"), network_);
}

} // namespace millrace::trainer
