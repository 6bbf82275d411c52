#include "policy_loss/token_loss.hpp"

#include "runtime/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

namespace millrace::policy_loss {

nonfinite_rule read_nonfinite(param_reader& params) {
  return static_cast<nonfinite_rule>(params.choice(
    "nonfinite", {"drop", "areal_zero"}, 0,
    "a valid token with a non-finite log-ratio: leave it out, or count its ratio as 1"));
}

token_loss::token_loss(std::string name, param_reader& params)
    : name_(std::move(name)), aggregate_(aggregate_options::read(params)),
      nonfinite_(read_nonfinite(params)),
      log_ratio_clamp_(
        params.number("log_ratio_clamp", 0, non_negative,
                      "log-ratios are clamped to ± this, without gradient outside; 0: not")),
      kl_beta_(
        params.number("kl_beta", 0, non_negative, "coefficient of KL(θ‖ref) added per token")),
      kl_(read_kl_estimator(params, "kl_estimator", kl_estimator::k3)) {}

requirements token_loss::needs() const {
  auto result = method_needs();
  result.ref = result.ref || kl_beta_ > 0;
  result.kept_counts = aggregate_.needs_kept_counts();
  result.sequences_whole = result.sequences_whole || aggregate_.needs_whole_sequences();
  return result;
}

statistics collect(const std::vector<device_statistic>& made) {
  statistics result;
  if (made.empty())
    return result;
  std::vector<at::Tensor> numbers;
  for (const auto& one : made) {
    numbers.push_back(one.value.detach());
    numbers.push_back(one.weight.detach());
  }
  auto host = at::stack(numbers).cpu();
  const auto* values = host.const_data_ptr<double>();
  for (std::size_t i = 0; i < made.size(); ++i)
    result.add(made[i].name, values[2 * i], values[2 * i + 1], made[i].rule);
  return result;
}

namespace {

/// Collects statistics over the valid tokens of one evaluation.
class recorder {
public:
  recorder(const batch& b, const at::Tensor& tokens) : batch_(b), tokens_(tokens) {}

  void mean(std::string name, const at::Tensor& per_token) {
    auto values = at::where(batch_.mask(), per_token.detach().to(at::kDouble), 0.0);
    add({std::move(name), values.sum() / tokens_.clamp_min(1), tokens_, merge_rule::mean});
  }
  void sum(std::string name, const at::Tensor& per_token) {
    add({std::move(name), per_token.to(at::kDouble).sum(), tokens_, merge_rule::sum});
  }
  void add(device_statistic one) { made_.push_back(std::move(one)); }
  [[nodiscard]] const std::vector<device_statistic>& made() const { return made_; }

private:
  const batch& batch_;
  at::Tensor tokens_;
  std::vector<device_statistic> made_;
};

at::Tensor or_none(const at::Tensor& given, const at::Tensor& like) {
  return given.defined() ? given : at::zeros_like(like);
}

void record(recorder& to, const batch& b, const term& t, const at::Tensor& keep,
            const at::Tensor& active) {
  auto high = or_none(t.clipped_high, b.mask());
  auto low = or_none(t.clipped_low, b.mask());
  to.mean("keep_frac", keep);
  to.mean("active_frac", active);
  to.mean("filtered_frac", keep.logical_not());
  if (t.clipped_high.defined()) {
    to.mean("clip_frac", high.logical_or(low));
    to.mean("clip_frac_high", high);
    to.mean("clip_frac_low", low);
    to.mean("dual_clip_frac", or_none(t.dual_clipped, b.mask()));
  }
  to.sum("nonfinite", b.nonfinite());
  to.sum("nonfinite_dropped", b.drops() ? b.nonfinite() : at::zeros_like(b.nonfinite()));
  if (t.log_r1.defined())
    to.mean("kl_k1_old_new", t.log_r1.neg());
  for (const auto& [name, per_token] : t.token_means)
    to.mean(name, per_token);
  for (const auto& one : t.scalars)
    to.add(one);
}

/// What callers see of a per-token tensor: detached, 0 outside the mask, in their layout.
at::Tensor shown(const batch& b, const at::Tensor& per_token) {
  auto inside = per_token.scalar_type() == at::kBool
                  ? per_token.logical_and(b.mask())
                  : at::where(b.mask(), per_token.detach(), 0.0);
  return b.where().restored(inside);
}

} // namespace

outputs token_loss::compute(const inputs& in) const {
  batch b{in, nonfinite_, log_ratio_clamp_};
  // Formed before the method's own ratios, so that what it drops is known to sequence levels.
  auto log_over_ref = kl_beta_ > 0 ? b.log_new_over_ref() : at::Tensor{};
  auto t = evaluate(b);
  auto keep = b.kept();
  if (t.keep.defined())
    keep = keep.logical_and(t.keep);
  if (b.given_keep().defined())
    keep = keep.logical_and(b.given_keep());
  auto values = log_over_ref.defined() ? t.value + kl_beta_ * kl_estimate(kl_, log_over_ref)
                                       : t.value;
  auto local = count_on_device(b.where(), b.mask(), keep);

  outputs out;
  out.loss = aggregate(aggregate_, b.where(), values, keep, local, in.global);

  at::NoGradGuard no_grad;
  auto active = keep;
  if (t.clipped_high.defined() && !t.clipped_has_gradient) {
    auto clipped = t.clipped_high.logical_or(t.clipped_low);
    if (t.dual_clipped.defined())
      clipped = clipped.logical_or(t.dual_clipped);
    active = keep.logical_and(clipped.logical_not());
  }
  auto weight = t.weight.defined() ? t.weight.detach() : at::ones_like(t.value.detach());
  out.weight = shown(b, at::where(keep, weight, 0.0));
  out.keep = shown(b, keep);
  out.active = shown(b, active);
  for (const auto& [name, per_token] : t.named_tokens)
    out.named[name] = shown(b, per_token);
  for (const auto& [name, per_sequence] : t.named_sequences)
    out.named[name] = per_sequence.detach();

  recorder stats{b, local.tokens};
  record(stats, b, t, keep, active);
  auto all = stats.made();
  for (const auto& count :
       {local.tokens, local.sequences, local.kept_tokens, local.kept_sequences})
    all.push_back({"", count, count, merge_rule::sum});
  auto collected = collect(all);
  const auto& values_on_host = collected.all();
  auto first_count = stats.made().size();
  for (std::size_t i = 0; i < first_count; ++i)
    out.stats.add(values_on_host[i].name, values_on_host[i].value, values_on_host[i].weight,
                  values_on_host[i].rule);
  auto count = [&](std::size_t i) {
    return static_cast<std::int64_t>(values_on_host[first_count + i].value);
  };
  out.local = {count(0), count(1), b.where().sequences(), count(2), count(3)};
  return out;
}

} // namespace millrace::policy_loss
