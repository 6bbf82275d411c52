#include "trainer/train_step.hpp"

#include "runtime/error.hpp"
#include "trainer/critic.hpp"
#include "trainer/collectives.hpp"
#include "trainer/parallel.hpp"
#include "trainer/step_batch.hpp"
#include "trainer/stopwatch.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

namespace millrace::trainer {

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

} // namespace

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

} // namespace millrace::trainer
