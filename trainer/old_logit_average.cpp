#include "trainer/old_logit_average.hpp"

#include "trainer/old_logits.hpp"

#include <ATen/core/grad_mode.h>

namespace millrace::trainer {

old_logit_average::old_logit_average(const ewma_settings& s, const model::transformer& network)
    : average_(policy_loss::beta_from_window(s.window), {network.flat().detach()}),
      reset_(s.reset_below, s.reset_rule == ewma_reset_rule::mask
                              ? policy_loss::reset_rule::mask
                              : policy_loss::reset_rule::mask_and_clip),
      network_(network.frozen_copy()) {}

bool old_logit_average::after_step(const model::transformer& theta, const kept_shares& shares) {
  auto reset = reset_.after_step(shares.kept, shares.active);
  if (reset)
    average_.reset({theta.flat().detach()});
  else
    average_.update({theta.flat().detach()});
  at::NoGradGuard no_grad;
  network_.flat().detach().copy_(average_.average().front());
  return reset;
}

std::int64_t old_logit_average::bytes() const {
  return 2 * static_cast<std::int64_t>(network_.flat().nbytes());
}

std::vector<tensor_view> old_logit_average::tensors() const {
  // The average's own memory is one flat tensor; the network's copy of it has names.
  auto views = network_.views();
  for (auto& v : views)
    v.name = "ewma/" + v.name;
  return views;
}

nlohmann::json old_logit_average::state() const {
  return {{"total_weight", average_.total_weight()}};
}

void old_logit_average::restore(const nlohmann::json& state) {
  average_.restore(state.at("total_weight").get<double>(), {network_.flat().detach().clone()});
}

} // namespace millrace::trainer
