#include "trainer/critic.hpp"

#include "policy_loss/value_loss.hpp"
#include "trainer/collectives.hpp"
#include "trainer/gradient_reducer.hpp"
#include "trainer/parallel.hpp"
#include "trainer/tensor_memory.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

namespace millrace::trainer {

namespace {

double variance(const at::Tensor& x) {
  return x.numel() < 2 ? 0 : (x - x.mean()).square().mean().item<double>();
}

} // namespace

critic::critic(const settings& s, const model::transformer& policy, rank_mesh* mesh)
    : settings_(s), mesh_(mesh) {
  if (s.algorithm.critic.kind == critic_kind::model) {
    network_.emplace(policy.frozen_copy());
    network_->requires_gradient(true);
    optimizer_.emplace(*network_, optimizer_options(s.trainer), mesh);
  }
  auto options = policy.flat().options().dtype(at::kFloat).requires_grad(false);
  head_ = at::zeros({policy.config().hidden_size + 1}, options).requires_grad_();
  head_.mutable_grad() = at::zeros(head_.sizes(), options);
  mean_ = at::zeros(head_.sizes(), options);
  square_ = at::zeros(head_.sizes(), options);
}

/// [M], with gradient where that is on.
at::Tensor critic::forward(const model::transformer& policy, const packed_sequences& packed) const {
  const auto device = head_.device();
  at::Tensor hidden;
  {
    at::AutoGradMode mode(network_.has_value() && at::GradMode::is_enabled());
    hidden = (network_ ? *network_ : policy).hidden(batch_of(packed, device))
               .index_select(0, tensor_of(packed.rows, device));
  }
  auto width = head_.numel() - 1;
  return at::mv(hidden.to(at::kFloat), head_.narrow(0, 0, width)) + head_.narrow(0, width, 1);
}

at::Tensor critic::values(const model::transformer& policy, const batch_scorer& scorer,
                          std::span<const std::size_t> all) const {
  at::NoGradGuard no_grad;
  auto out = at::zeros({scorer.layout().tokens()}, at::kFloat);
  for (const auto& part : scorer.split_share(all))
    out.index_copy_(0, scorer.layout().places(part),
                    forward(policy, scorer.packed(part)).to(out.device()));
  if (mesh_)
    mesh_->data().all_reduce(out); // each place was filled by one rank
  return out;
}

void critic::update(const model::transformer& policy, const batch_scorer& scorer,
                    const partition& minibatches, const at::Tensor& returns,
                    const at::Tensor& old_values, double learning_rate, step_statistics& stats) {
  const auto& c = settings_.algorithm.critic;
  if (c.lr > 0) // its own, on the trainer's schedule
    learning_rate = settings_.trainer.lr > 0 ? learning_rate * c.lr / settings_.trainer.lr : c.lr;
  nlohmann::json params{{"agg", "token_mean"}};
  if (c.clip > 0)
    params["eps"] = c.clip;
  auto spread = variance(returns);
  stats.value_mean = old_values.numel() > 0 ? old_values.mean().item<double>() : 0;
  stats.explained_variance = spread > 0 ? 1 - variance(returns - old_values) / spread : 0;
  double updates = 0;
  for (const auto& which : minibatches) {
    policy_loss::counts whole;
    for (auto s : which)
      whole.tokens += scorer.layout().cu_seqlens[s + 1] - scorer.layout().cu_seqlens[s];
    whole.batch = whole.sequences = static_cast<std::int64_t>(which.size());
    double loss = 0, clipped = 0;
    for (const auto& part : scorer.split_share(which)) {
      auto packed = scorer.packed(part);
      auto places = scorer.layout().places(part);
      auto out = policy_loss::ppo_value_clip(
        {forward(policy, packed), old_values.index_select(0, places).to(head_.device()),
         returns.index_select(0, places).to(head_.device()), {}, packed.sampled_cu_seqlens, whole},
        params);
      out.loss.backward();
      loss += out.loss.item<double>();
      clipped += (out.keep.sum() - out.active.sum()).item<double>();
    }
    if (whole.tokens == 0)
      continue;
    if (mesh_) {
      add_up_gradients();
      loss = mesh_->data().sum(loss);
      clipped = mesh_->data().sum(clipped);
    }
    if (!apply(learning_rate, stats))
      continue;
    ++updates;
    stats.value_loss += loss;
    stats.value_clip_fraction += clipped / static_cast<double>(whole.tokens);
  }
  for (auto* sum : {&stats.value_loss, &stats.value_clip_fraction, &stats.critic_grad_norm})
    *sum /= std::max(1.0, updates);
}

void critic::add_up_gradients() {
  mesh_->data().all_reduce(head_.mutable_grad());
  if (!network_)
    return;
  auto gradient = network_->flat_gradient();
  mesh_->data().all_reduce(gradient);
  sum_partial_gradients(*network_);
}

/// One update from the gradients, which are zero afterwards; false when they are not finite.
bool critic::apply(double learning_rate, step_statistics& stats) {
  at::NoGradGuard no_grad;
  const auto& t = settings_.trainer;
  auto gradient = head_.grad().clone();
  head_.mutable_grad().zero_();
  auto norm = at::linalg_vector_norm(gradient).item<double>();
  adamw::outcome of_network{.applied = true};
  if (std::isfinite(norm) && optimizer_)
    of_network = optimizer_->step(learning_rate);
  if (!std::isfinite(norm) || !of_network.applied) {
    if (optimizer_)
      optimizer_->discard();
    stats.remarks.push_back("training from " + to_string(stats.trained_from)
                            + ": the critic's gradient is not finite; its update was skipped");
    return false;
  }
  stats.critic_grad_norm += std::hypot(norm, of_network.grad_norm);
  if (t.grad_clip > 0 && norm > t.grad_clip)
    gradient.mul_(t.grad_clip / norm);
  ++updates_;
  mean_.mul_(t.beta1).add_(gradient, 1 - t.beta1);
  square_.mul_(t.beta2).addcmul_(gradient, gradient, 1 - t.beta2);
  auto n = static_cast<double>(updates_);
  auto root = (square_ / (1 - std::pow(t.beta2, n))).sqrt_().add_(t.eps);
  head_.addcdiv_(mean_, root, -learning_rate / (1 - std::pow(t.beta1, n)));
  return true;
}

std::vector<tensor_view> critic::tensors() const {
  std::vector<tensor_view> views{view_of("critic/head", head_.detach()),
                                 view_of("critic/head_exp_avg", mean_),
                                 view_of("critic/head_exp_avg_sq", square_)};
  if (!network_)
    return views;
  auto own = network_->views();
  auto moments = optimizer_->state();
  own.insert(own.end(), moments.begin(), moments.end());
  for (auto& v : own) {
    v.name = "critic/" + v.name;
    views.push_back(std::move(v));
  }
  return views;
}

nlohmann::json critic::state() const { return {{"updates", updates_}}; }

void critic::restore(const nlohmann::json& state) {
  updates_ = state.at("updates").get<std::int64_t>();
  if (optimizer_)
    optimizer_->set_updates(updates_);
}

} // namespace millrace::trainer
