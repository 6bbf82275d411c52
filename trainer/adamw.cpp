#include "trainer/adamw.hpp"

#include "trainer/tensor_memory.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

namespace millrace::trainer {

adamw::adamw(model::transformer& network, adamw_options options)
    : network_(network), options_(options) {
  at::NoGradGuard no_grad;
  auto flat = network.flat().detach();
  gradient_ = network.flat_gradient();
  mean_ = at::zeros_like(gradient_);
  square_ = at::zeros_like(gradient_);
  std::int64_t begin = 0, end = 0;
  bool decayed = false;
  auto close = [&] {
    if (end > begin)
      segments_.push_back({flat.narrow(0, begin, end - begin),
                           gradient_.narrow(0, begin, end - begin),
                           mean_.narrow(0, begin, end - begin),
                           square_.narrow(0, begin, end - begin),
                           at::zeros({}, flat.options()),
                           decayed ? options_.weight_decay : 0.0});
    begin = end;
  };
  for (const auto& p : network.parameters()) {
    auto matrix = p.value.dim() > 1;
    if (options_.weight_decay != 0 && matrix != decayed)
      close();
    decayed = matrix;
    end = p.value.storage_offset() - flat.storage_offset() + p.value.numel();
  }
  end = flat.numel();
  close();
}

adamw::outcome adamw::step(double learning_rate) {
  at::NoGradGuard no_grad;
  outcome result;
  result.grad_norm = at::linalg_vector_norm(gradient_).item<double>();
  if (!std::isfinite(result.grad_norm)) {
    discard();
    return result;
  }
  std::optional<at::Tensor> scale; // the update divides gradients by it
  if (options_.grad_clip > 0 && result.grad_norm > options_.grad_clip) {
    scale = at::full({}, result.grad_norm / options_.grad_clip, gradient_.options());
    result.clipped = true;
  }
  for (auto& s : segments_) {
    s.updates.add_(1);
    at::_fused_adamw_({s.parameters}, {s.gradient}, {s.mean}, {s.square}, {}, {s.updates},
                      learning_rate, options_.beta1, options_.beta2, s.weight_decay, options_.eps,
                      /*amsgrad=*/false, /*maximize=*/false, scale);
  }
  ++updates_;
  result.applied = true;
  discard();
  return result;
}

void adamw::discard() { gradient_.zero_(); }

std::vector<tensor_view> adamw::state() const {
  std::vector<tensor_view> views;
  auto base = network_.flat().storage_offset();
  for (const auto& p : network_.parameters())
    for (const auto& [prefix, moment] : {std::pair{"exp_avg/", mean_}, {"exp_avg_sq/", square_}})
      views.push_back(view_of(prefix + p.name,
                              moment.narrow(0, p.value.storage_offset() - base, p.value.numel())
                                .view(p.value.sizes())));
  return views;
}

void adamw::set_updates(std::int64_t updates) {
  updates_ = updates;
  for (auto& s : segments_)
    s.updates.fill_(static_cast<double>(updates));
}

} // namespace millrace::trainer
