#include "policy_loss/reference/ewma.hpp"

#include "runtime/error.hpp"

#include <ATen/core/grad_mode.h>

namespace millrace::policy_loss {

namespace {

at::ScalarType average_type(const at::Tensor& parameter) {
  return parameter.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::vector<at::Tensor> copied(const std::vector<at::Tensor>& from) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> result;
  for (const auto& parameter : from)
    result.push_back(parameter.detach().to(average_type(parameter), /*non_blocking=*/false,
                                           /*copy=*/true));
  return result;
}

} // namespace

double beta_from_window(double stale_window) {
  return stale_window / (stale_window + 2);
}

double center_of_mass(double beta) {
  return beta / (1 - beta);
}

ewma::ewma(double beta, const std::vector<at::Tensor>& theta)
    : beta_(beta), average_(copied(theta)) {
  if (!(beta >= 0 && beta < 1))
    throw user_error("ewma: beta is " + std::to_string(beta) + ", expected 0 <= beta < 1");
}

void ewma::update(const std::vector<at::Tensor>& theta) {
  ensure(theta.size() == average_.size(), [&] {
    return "ewma holds " + std::to_string(average_.size()) + " parameters, got "
           + std::to_string(theta.size());
  });
  at::NoGradGuard no_grad;
  total_weight_ = beta_ * total_weight_ + 1;
  // (β·W/W')·θ_p + θ/W' = θ_p + (θ − θ_p)/W', as β·W = W' − 1.
  for (std::size_t i = 0; i < theta.size(); ++i)
    average_[i].lerp_(theta[i].detach().to(average_[i].options()), 1 / total_weight_);
}

void ewma::reset(const std::vector<at::Tensor>& theta) {
  restore(1, theta);
}

void ewma::restore(double total_weight, const std::vector<at::Tensor>& average) {
  ensure(average.size() == average_.size(), [&] {
    return "ewma holds " + std::to_string(average_.size()) + " parameters, got "
           + std::to_string(average.size());
  });
  at::NoGradGuard no_grad;
  total_weight_ = total_weight;
  for (std::size_t i = 0; i < average.size(); ++i)
    average_[i].copy_(average[i].detach());
}

bool ewma_auto_reset::after_step(double keep_frac, double active_frac) const {
  return (rule_ == reset_rule::mask ? keep_frac : active_frac) < tau_;
}

} // namespace millrace::policy_loss
