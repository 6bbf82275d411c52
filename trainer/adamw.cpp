#include "trainer/adamw.hpp"

#include "runtime/error.hpp"
#include "trainer/collectives.hpp"
#include "trainer/gradient_norm.hpp"
#include "trainer/parallel.hpp"
#include "trainer/tensor_memory.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace millrace::trainer {

adamw_options optimizer_options(const trainer_settings& t) {
  return {t.beta1, t.beta2, t.eps, t.weight_decay, t.grad_clip, t.offload_optimizer};
}

adamw::adamw(model::transformer& network, adamw_options options, rank_mesh* mesh, bool sharded)
    : network_(network), options_(options), mesh_(mesh), sharded_(sharded && mesh) {
  at::NoGradGuard no_grad;
  gradient_ = network.flat_gradient();
  own_ = sharded_ ? owned_range(gradient_.numel(), mesh->data().rank(), mesh->data().size())
                  : flat_range{0, gradient_.numel()};
  auto parameters = own_part(network.flat().detach()), gradient = own_part(gradient_);
  auto where = gradient.options();
  if (options_.offload) {
    where = where.device(at::kCPU);
    // Copies between a device and pages that can't be moved go at the link's full speed.
    const auto crosses = where.pinned_memory(gradient.is_cuda());
    parameters = host_parameters_ = at::zeros(parameters.sizes(), crosses);
    gradient = host_gradient_ = at::zeros(gradient.sizes(), crosses);
    parameters_to_host();
  }
  mean_ = at::zeros(gradient.sizes(), where);
  square_ = at::zeros(gradient.sizes(), where);
  for (auto s : stretches()) {
    s.begin = std::max(s.begin, own_.begin);
    s.end = std::min(s.end, own_.end);
    auto at = s.begin - own_.begin, n = s.end - s.begin;
    if (n > 0)
      segments_.push_back({parameters.narrow(0, at, n), gradient.narrow(0, at, n),
                           mean_.narrow(0, at, n), square_.narrow(0, at, n),
                           at::zeros({}, where),
                           gradient_.narrow(0, s.begin, n),
                           s.decayed ? options_.weight_decay : 0.0, s.replicated});
  }
}

at::Tensor adamw::own_part(const at::Tensor& flat) const {
  return flat.narrow(0, own_.begin, own_.end - own_.begin);
}

void adamw::parameters_to_host() { host_parameters_.copy_(own_part(network_.flat().detach())); }

/// The flat buffer in pieces that are treated alike.
std::vector<adamw::stretch> adamw::stretches() const {
  std::vector<stretch> all;
  auto base = network_.flat().storage_offset();
  const auto& group = network_.group();
  for (const auto& p : network_.parameters()) {
    auto decayed = options_.weight_decay != 0 && p.value.dim() > 1;
    auto replicated = group
                      && model::slice_of(network_.whole_config(), p.name, group->rank, group->size)
                             .dimension < 0;
    auto begin = p.value.storage_offset() - base;
    if (all.empty() || all.back().decayed != decayed || all.back().replicated != replicated)
      all.push_back({begin, begin, decayed, replicated});
    all.back().end = begin + p.value.numel();
  }
  return all;
}

double adamw::gradient_norm() {
  if (!mesh_)
    return std::sqrt(sum_of_squares(gradient_));
  double squares = 0;
  for (const auto& s : segments_)
    if (!s.replicated || mesh_->tensor_index() == 0)
      squares += sum_of_squares(s.model_gradient);
  squares = mesh_->tensor().sum(squares);
  return std::sqrt(sharded_ ? mesh_->data().sum(squares) : squares);
}

void adamw::spread_parameters() {
  auto flat = network_.flat().detach();
  for (int r = 0; r < mesh_->data().size(); ++r) {
    auto part = owned_range(flat.numel(), r, mesh_->data().size());
    auto piece = flat.narrow(0, part.begin, part.end - part.begin);
    mesh_->data().broadcast(piece, r);
  }
}

adamw::outcome adamw::step(double learning_rate) {
  at::NoGradGuard no_grad;
  outcome result;
  result.grad_norm = gradient_norm();
  if (!std::isfinite(result.grad_norm)) {
    discard();
    return result;
  }
  std::optional<at::Tensor> scale; // the update divides gradients by it
  if (options_.grad_clip > 0 && result.grad_norm > options_.grad_clip) {
    scale = at::full({}, result.grad_norm / options_.grad_clip, mean_.options());
    result.clipped = true;
  }
  if (options_.offload)
    host_gradient_.copy_(own_part(gradient_));
  for (auto& s : segments_) {
    s.updates.add_(1);
    at::_fused_adamw_({s.parameters}, {s.gradient}, {s.mean}, {s.square}, {}, {s.updates},
                      learning_rate, options_.beta1, options_.beta2, s.weight_decay, options_.eps,
                      /*amsgrad=*/false, /*maximize=*/false, scale);
  }
  if (options_.offload)
    own_part(network_.flat().detach()).copy_(host_parameters_);
  if (sharded_)
    spread_parameters();
  ++updates_;
  result.applied = true;
  discard();
  return result;
}

void adamw::discard() { gradient_.zero_(); }

std::vector<tensor_view> adamw::state() const {
  std::vector<tensor_view> views;
  auto base = network_.flat().storage_offset();
  ensure(!sharded_ || whole_mean_.defined(), "the optimiser's state was not gathered");
  const auto& mean = sharded_ ? whole_mean_ : mean_;
  const auto& square = sharded_ ? whole_square_ : square_;
  for (const auto& p : network_.parameters())
    for (const auto& [prefix, moment] : {std::pair{"exp_avg/", mean}, {"exp_avg_sq/", square}})
      views.push_back(view_of(prefix + p.name,
                              moment.narrow(0, p.value.storage_offset() - base, p.value.numel())
                                .view(p.value.sizes())));
  return views;
}

std::vector<tensor_view> adamw::own_state() const {
  if (!sharded_)
    return state();
  std::vector<tensor_view> views;
  auto base = network_.flat().storage_offset();
  for (const auto& p : network_.parameters()) {
    auto begin = std::max(own_.begin, p.value.storage_offset() - base);
    auto end = std::min(own_.end, p.value.storage_offset() - base + p.value.numel());
    if (begin < end)
      for (const auto& [prefix, moment] : {std::pair{"exp_avg/", mean_}, {"exp_avg_sq/", square_}})
        views.push_back(view_of(prefix + p.name, moment.narrow(0, begin - own_.begin, end - begin)));
  }
  return views;
}

void adamw::gather_state() {
  if (!sharded_)
    return;
  // In host memory: a device that has room for its part need not have it for all of them.
  const auto where = mean_.options().device(at::kCPU);
  whole_mean_ = at::zeros(gradient_.sizes(), where);
  whole_square_ = at::zeros(gradient_.sizes(), where);
  whole_mean_.narrow(0, own_.begin, own_.end - own_.begin).copy_(mean_);
  whole_square_.narrow(0, own_.begin, own_.end - own_.begin).copy_(square_);
  for (int r = 0; r < mesh_->data().size(); ++r) {
    auto part = owned_range(gradient_.numel(), r, mesh_->data().size());
    for (auto* whole : {&whole_mean_, &whole_square_}) {
      auto piece = whole->narrow(0, part.begin, part.end - part.begin);
      mesh_->data().broadcast(piece, r);
    }
  }
}

void adamw::scatter_state() {
  if (!sharded_)
    return;
  mean_.copy_(whole_mean_.narrow(0, own_.begin, own_.end - own_.begin));
  square_.copy_(whole_square_.narrow(0, own_.begin, own_.end - own_.begin));
  whole_mean_ = whole_square_ = at::Tensor();
}

void adamw::set_updates(std::int64_t updates) {
  updates_ = updates;
  for (auto& s : segments_)
    s.updates.fill_(static_cast<double>(updates));
  if (options_.offload)
    parameters_to_host(); // what else was restored with it
}

std::int64_t adamw::offloaded_bytes() const {
  if (!options_.offload)
    return 0;
  const auto crossing = host_gradient_.nbytes();
  return static_cast<std::int64_t>(
    2 * mean_.nbytes() + 2 * (gradient_.is_cuda() ? std::bit_ceil(crossing) : crossing));
}

} // namespace millrace::trainer
