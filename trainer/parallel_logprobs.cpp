#include "trainer/parallel_logprobs.hpp"

#include "runtime/model/tensor_parallel_ops.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace millrace::trainer {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using model::group_pointer;

/// Where the targets lie in this rank's part of the vocabulary.
struct own_targets {
  at::Tensor column, here;
  own_targets(const at::Tensor& targets, std::int64_t first, std::int64_t width)
      : column((targets - first).clamp(0, width - 1).unsqueeze(1)),
        here(targets.ge(first).logical_and(targets.lt(first + width))) {}
};

at::Tensor logits_of(const at::Tensor& hidden, const at::Tensor& weight, double temperature) {
  auto logits = at::mm(hidden, weight.t());
  if (logits.scalar_type() != at::kDouble)
    logits = logits.to(at::kFloat);
  return temperature == 1 ? logits : logits.div_(temperature);
}

struct logprobs : Function<logprobs> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& hidden,
                               const at::Tensor& weight, const at::Tensor& targets,
                               double temperature, std::int64_t first, const group_pointer& group,
                               std::int64_t chunk) {
    const auto n = hidden.size(0);
    std::vector<at::Tensor> logp, entropy, lse, top1;
    for (std::int64_t at = 0; at < n || at == 0; at += chunk) {
      const auto rows = std::min(chunk, n - at);
      auto x = logits_of(hidden.narrow(0, at, rows), weight, temperature);
      const own_targets own(targets.narrow(0, at, rows), first, weight.size(0));
      auto max = rows > 0 ? x.amax(1) : at::zeros({0}, x.options());
      group->largest(max);
      x.sub_(max.unsqueeze(1));
      const auto e = x.exp();
      auto sums = at::stack({e.sum(1), (e * x).sum(1),
                             at::where(own.here, x.gather(1, own.column).squeeze(1), 0.0)});
      group->sum(sums);
      const auto log_sum = sums[0].log();
      logp.push_back(sums[2] - log_sum);
      entropy.push_back(log_sum - sums[1] / sums[0]);
      lse.push_back(log_sum + max);
      top1.push_back(sums[2].ge(0));
    }
    auto all_entropy = at::cat(entropy);
    ctx->save_for_backward({hidden, weight, targets, at::cat(lse), all_entropy});
    ctx->saved_data["temperature"] = temperature;
    ctx->saved_data["first"] = first;
    ctx->saved_data["chunk"] = chunk;
    ctx->saved_data["group"] = model::held(group);
    auto hits = at::cat(top1);
    ctx->mark_non_differentiable({hits});
    ctx->set_materialize_grads(false);
    return {at::cat(logp), all_entropy, hits};
  }

  /// As in policy_loss/token_logprobs.cpp: g·(1{target} − p) − h·p·(log p + entropy).
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &hidden = saved[0], &weight = saved[1], &targets = saved[2], &lse = saved[3],
               &entropy = saved[4];
    const auto temperature = ctx->saved_data["temperature"].toDouble();
    const auto first = ctx->saved_data["first"].toInt(), chunk = ctx->saved_data["chunk"].toInt();
    auto g_hidden = at::zeros(hidden.sizes(), hidden.options().dtype(lse.scalar_type()));
    auto g_weight = at::zeros(weight.sizes(), weight.options().dtype(lse.scalar_type()));
    for (std::int64_t at = 0; at < hidden.size(0); at += chunk) {
      const auto rows = std::min(chunk, hidden.size(0) - at);
      const auto part = [&](const at::Tensor& t) { return t.narrow(0, at, rows); };
      auto x = logits_of(part(hidden), weight, temperature).sub_(part(lse).unsqueeze(1));
      const own_targets own(part(targets), first, weight.size(0));
      const auto g = grads[0].defined() ? part(grads[0]) : at::zeros({rows}, lse.options());
      auto slope = -g.unsqueeze(1);
      if (grads[1].defined())
        slope = slope - part(grads[1]).unsqueeze(1) * (x + part(entropy).unsqueeze(1));
      auto d = x.exp_().mul_(slope);
      d.scatter_add_(1, own.column, at::where(own.here, g, 0.0).unsqueeze(1));
      if (temperature != 1)
        d.div_(temperature);
      const auto narrow = d.to(hidden.scalar_type());
      g_hidden.narrow(0, at, rows).copy_(at::mm(narrow, weight));
      g_weight.add_(at::mm(narrow.t(), part(hidden)));
    }
    model::group_in(ctx->saved_data["group"]).sum(g_hidden);
    variable_list out(7);
    out[0] = g_hidden.to(hidden.scalar_type());
    out[1] = g_weight.to(weight.scalar_type());
    return out;
  }
};

} // namespace

policy_loss::token_logprobs_result
parallel_token_logprobs(const at::Tensor& hidden, const at::Tensor& head_weight,
                        const at::Tensor& targets, double temperature, std::int64_t first_token,
                        const std::shared_ptr<const model::tensor_group>& group,
                        std::int64_t chunk) {
  const auto out = logprobs::apply(hidden, head_weight, targets, temperature, first_token, group,
                                   chunk);
  return {out[0], out[1], out[2]};
}

} // namespace millrace::trainer
