#include "policy_loss/losses/m2po.hpp"

#include "policy_loss/losses/all.hpp"
#include "policy_loss/token_loss.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

namespace millrace::policy_loss {

m2po_selection m2po_keep(const at::Tensor& log_ratio, const at::Tensor& advantages,
                         const at::Tensor& valid, double threshold, m2po_scope scope) {
  auto x = log_ratio.detach().reshape({-1}).to(at::kDouble);
  auto a = advantages.reshape({-1});
  auto candidate = valid.reshape({-1});
  if (scope == m2po_scope::trust_region)
    candidate = candidate.logical_and(
      a.gt(0).logical_and(x.gt(0)).logical_or(a.lt(0).logical_and(x.lt(0))));
  // Sorted with the largest first; what is no candidate sorts behind all of them as −1.
  auto [sorted, order] =
    at::where(candidate, x.square(), -1.0).sort(/*dim=*/0, /*descending=*/true);
  auto squares = sorted.clamp_min(0);
  auto rank = at::arange(x.numel(), order.options());
  auto number = candidate.sum();
  // What is left after dropping the first i. Summed from the small end, where it matters.
  auto rest = squares.flip({0}).cumsum(0).flip({0});
  auto mean = rest / (number - rank).clamp_min(1);
  auto enough = mean.lt(threshold).logical_or(rank.ge(number));
  auto dropped = enough.logical_not().sum(); // `enough` is monotone: the mean falls with rank
  auto keep_sorted = rank.ge(dropped);
  m2po_selection result;
  result.keep = at::empty_like(keep_sorted).scatter_(0, order, keep_sorted).reshape(valid.sizes());
  result.candidates = number.to(at::kDouble);
  result.left = (number - dropped).to(at::kDouble);
  result.before = squares.sum() / result.candidates.clamp_min(1);
  result.after = at::where(keep_sorted, squares, 0.0).sum() / result.left.clamp_min(1);
  return result;
}

namespace losses {

namespace {

/// Second-moment trust policy optimisation (M2PO 2510.01161):
///   −r·A·keep,  r = θ/μ
/// with a mask that holds the second moment of log r below `m2_threshold` (see m2po_keep).
class m2po_loss : public token_loss {
public:
  explicit m2po_loss(param_reader& params) : token_loss("m2po", params) {
    threshold_ = params.number("m2_threshold", 0.04, non_negative,
                               "the mean of (log r)² is brought below this");
    scope_ = static_cast<m2po_scope>(
      params.choice("scope", {"all", "trust_region"}, 0, "which tokens may be dropped"));
  }

protected:
  [[nodiscard]] requirements method_needs() const override {
    return {.behav = true, .batch_whole = true};
  }

  [[nodiscard]] term evaluate(batch& b) const override {
    term t;
    auto log_r = b.log_new_over_behav();
    t.value = b.exp(log_r).neg() * b.advantages();
    if (b.given_keep().defined())
      return t;
    auto selected = m2po_keep(log_r, b.advantages(), b.kept(), threshold_, scope_);
    t.keep = selected.keep;
    t.scalars = {{"m2_before", selected.before, selected.candidates},
                 {"m2_after", selected.after, selected.left}};
    return t;
  }

private:
  double threshold_;
  m2po_scope scope_;
};

} // namespace

std::unique_ptr<loss> m2po(param_reader& params) {
  return std::make_unique<m2po_loss>(params);
}

} // namespace losses

} // namespace millrace::policy_loss
