#include "policy_loss/advantage.hpp"
#include "policy_loss/advantages/host.hpp"
#include "policy_loss/layout.hpp"
#include "runtime/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>

namespace millrace::policy_loss {

kl_reward_outputs kl_reward(const at::Tensor& logp_behav, const at::Tensor& logp_ref,
                            const advantage_inputs& in, const kl_reward_options& options) {
  if (!logp_behav.defined() || !logp_ref.defined())
    throw user_error("KL in the reward needs the log-probs of the generator and of a reference");
  at::NoGradGuard no_grad;
  layout where{logp_behav, in.cu_seqlens};
  auto valid = flat_mask(where, in.mask, logp_behav);
  auto x = where.flat(logp_behav, at::kDouble, "logp_behav")
           - where.flat(logp_ref, at::kDouble, "logp_ref");
  auto usable = valid.logical_and(at::isfinite(x));
  x = at::where(usable, x, 0.0);
  if (options.log_ratio_clamp > 0)
    x = x.clamp(-options.log_ratio_clamp, options.log_ratio_clamp);
  auto estimate = [&](kl_estimator how) { return where.restored(kl_estimate(how, x)); };
  kl_reward_outputs out;
  out.k1 = estimate(kl_estimator::k1);
  out.k2 = estimate(kl_estimator::k2);
  out.k3 = estimate(kl_estimator::k3);
  out.token_rewards = estimate(options.estimator).mul(-options.coefficient);
  if (in.rewards.defined() || in.token_rewards.defined()) {
    auto outcome = in;
    if (!outcome.mask.defined())
      outcome.mask = where.restored(valid);
    advantages::host_inputs host{outcome};
    out.token_rewards = out.token_rewards + host.per_token(host.token_rewards());
  }
  return out;
}

} // namespace millrace::policy_loss
