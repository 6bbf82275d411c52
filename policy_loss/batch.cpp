#include "policy_loss/batch.hpp"

#include "runtime/error.hpp"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

namespace millrace::policy_loss {

namespace {

// Bounds for the argument of exp. Arithmetic is in fp64, so a product of two such ratios with any
// advantage stays finite; with fp32 inputs a single ratio must also survive the gradient's way back
// to fp32 (e^88 does not).
constexpr double exp_limit_fp64 = 300;
constexpr double exp_limit_fp32 = 80;

at::Tensor flat_advantages(const layout& where, const at::Tensor& given, const at::Tensor& like) {
  auto per_sequence = given.dim() == 1 && given.numel() == where.sequences()
                      && given.sizes() != like.sizes();
  if (per_sequence)
    return where.to_tokens(given.detach().to(at::kDouble));
  return where.flat(given.detach(), at::kDouble, "advantages");
}

} // namespace

batch::batch(const inputs& in, nonfinite_rule nonfinite, double log_ratio_clamp)
  : in_(in),
    layout_(in.logp_new, in.cu_seqlens),
    rule_(nonfinite),
    log_ratio_clamp_(log_ratio_clamp),
    exp_limit_(in.logp_new.scalar_type() == at::kDouble ? exp_limit_fp64 : exp_limit_fp32) {
  mask_ = flat_mask(layout_, in.mask, in.logp_new);
  logp_new_ = layout_.flat(in.logp_new, at::kDouble, "logp_new");
  nonfinite_ = at::zeros_like(mask_);
  if (in.advantages.defined()) {
    auto advantages = flat_advantages(layout_, in.advantages, in.logp_new);
    auto usable = mask_.logical_and(at::isfinite(advantages));
    nonfinite_ = mask_.logical_and(usable.logical_not());
    advantages_ = at::where(usable, advantages, 0.0);
  }
  if (in.keep.defined())
    given_keep_ = layout_.flat(in.keep, at::kBool, "keep");
}

const at::Tensor& batch::advantages() const {
  if (!advantages_.defined())
    throw user_error("this loss needs advantages, and none were given");
  return advantages_;
}

at::Tensor batch::required(const at::Tensor& given, const char* name) const {
  if (!given.defined())
    throw user_error(std::string("this loss needs ") + name + ", and none was given");
  return layout_.flat(given.detach(), at::kDouble, name);
}

at::Tensor batch::logp_prox() const {
  return required(in_.logp_prox, "logp_prox");
}

at::Tensor batch::logp_behav() const {
  return required(in_.logp_behav, "logp_behav");
}

at::Tensor batch::rewards() const {
  if (!in_.rewards.defined())
    throw user_error("this loss needs rewards, and none were given");
  ensure(in_.rewards.dim() == 1 && in_.rewards.numel() == layout_.sequences(),
         "rewards must have one entry per sequence");
  return layout_.to_tokens(in_.rewards.detach().to(at::kDouble));
}

at::Tensor batch::log_ratio(const at::Tensor& numerator, const at::Tensor& denominator) {
  auto difference = numerator - denominator;
  auto usable = mask_.logical_and(at::isfinite(difference));
  nonfinite_ = nonfinite_.logical_or(mask_.logical_and(usable.logical_not()));
  // Before any exp: the other order would send 0·inf back to the log-probs.
  auto clean = at::where(usable, difference, 0.0);
  return log_ratio_clamp_ > 0 ? clean.clamp(-log_ratio_clamp_, log_ratio_clamp_) : clean;
}

at::Tensor batch::clean_logp_new() {
  auto usable = mask_.logical_and(at::isfinite(logp_new_));
  nonfinite_ = nonfinite_.logical_or(mask_.logical_and(usable.logical_not()));
  return at::where(usable, logp_new_, 0.0);
}

at::Tensor batch::log_new_over_prox() {
  return log_ratio(logp_new_, logp_prox());
}

at::Tensor batch::log_new_over_behav() {
  return log_ratio(logp_new_, logp_behav());
}

at::Tensor batch::log_new_over_ref() {
  return log_ratio(logp_new_, required(in_.logp_ref, "logp_ref"));
}

at::Tensor batch::log_prox_over_behav() {
  return log_ratio(logp_prox(), logp_behav());
}

at::Tensor batch::kept() const {
  return drops() ? mask_.logical_and(nonfinite_.logical_not()) : mask_;
}

at::Tensor batch::at_level(ratio_level level, const at::Tensor& log_ratio) const {
  if (level == ratio_level::token)
    return log_ratio;
  auto present = kept();
  auto total = layout_.sum(at::where(present, log_ratio, 0.0));
  if (level == ratio_level::geometric)
    total = total / layout_.sum(present.to(at::kDouble)).clamp_min(1);
  return layout_.to_tokens(total);
}

at::Tensor batch::exp(const at::Tensor& log_ratio) const {
  return log_ratio.clamp_max(exp_limit_).exp();
}

} // namespace millrace::policy_loss
