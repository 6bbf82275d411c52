#include "policy_loss/token_logprobs.hpp"

#include "runtime/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vecdot.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <sstream>

namespace millrace::policy_loss {

namespace {

struct tiling {
  std::int64_t tokens, vocabulary;
};

// On CPU a tile should stay in the second-level cache through its five or six elementwise passes
// while the products are still large enough to run at full rate; on a GPU it only has to amortise
// kernel launches.
tiling choose(const token_logprob_options& options, const at::Tensor& hidden) {
  tiling result = hidden.is_cuda() ? tiling{4096, 16384} : tiling{256, 2048};
  if (options.chunk > 0)
    result.tokens = options.chunk;
  if (options.vocab_tile > 0)
    result.vocabulary = options.vocab_tile;
  return result;
}

at::ScalarType working_type(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// One tile of softmax's argument: logits in the inputs' dtype, as the generator makes them, then
/// fp32 and the temperature.
at::Tensor tile_logits(const at::Tensor& hidden, const at::Tensor& weight, double temperature) {
  auto logits = at::mm(hidden, weight.t()).to(working_type(hidden));
  return temperature == 1 ? logits : logits.div_(temperature);
}

/// The running state of the online log-sum-exp, one entry per token: the maximum m so far, Σ
/// e^(x−m), Σ e^(x−m)·(x−m) and the target's logit.
struct running {
  at::Tensor max, sum, weighted, target;

  running(std::int64_t n, const at::TensorOptions& options)
    : max(at::full({n}, -std::numeric_limits<double>::infinity(), options)),
      sum(at::zeros({n}, options)),
      weighted(at::zeros({n}, options)),
      target(at::full({n}, -std::numeric_limits<double>::infinity(), options)) {}
};

/// Where in a tile each token's target is: column, clamped into the tile, and whether it is there.
struct target_columns {
  at::Tensor column, inside;
  target_columns(const at::Tensor& targets, std::int64_t first, std::int64_t width)
    : column((targets - first).clamp(0, width - 1)),
      inside(targets.ge(first).logical_and(targets.lt(first + width))) {}
};

void absorb(running& all, std::int64_t first_token, at::Tensor logits, const at::Tensor& targets,
            std::int64_t first_column) {
  auto n = logits.size(0);
  auto max = all.max.narrow(0, first_token, n);
  auto sum = all.sum.narrow(0, first_token, n);
  auto weighted = all.weighted.narrow(0, first_token, n);
  auto target = all.target.narrow(0, first_token, n);
  target_columns at_target{targets, first_column, logits.size(1)};
  auto found = logits.gather(1, at_target.column.unsqueeze(1)).squeeze(1);
  target.copy_(at::where(at_target.inside, found, target));

  auto new_max = at::maximum(max, logits.amax(1));
  logits.sub_(new_max.unsqueeze(1));
  auto exponentials = logits.exp();
  // Move the sums to the new maximum; before the first tile they are 0 and max is −inf.
  auto shift = at::where(sum.gt(0), max - new_max, 0.0);
  auto factor = shift.exp();
  weighted.add_(sum * shift).mul_(factor).add_(at::linalg_vecdot(exponentials, logits, 1));
  sum.mul_(factor).add_(exponentials.sum(1));
  max.copy_(new_max);
}

template <class Visit>
void for_each_tile(std::int64_t tokens, std::int64_t vocabulary, const tiling& tile, Visit visit) {
  // Vocabulary outside: a slice of the head (and of its gradient) is the larger operand, and is
  // then read once.
  for (std::int64_t v = 0; v < vocabulary; v += tile.vocabulary)
    for (std::int64_t t = 0; t < tokens; t += tile.tokens)
      visit(t, std::min(tile.tokens, tokens - t), v, std::min(tile.vocabulary, vocabulary - v));
}

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct token_logprob_function : torch::autograd::Function<token_logprob_function> {
  static tensor_list forward(AutogradContext* context, const at::Tensor& hidden,
                             const at::Tensor& weight, const at::Tensor& targets,
                             double temperature, std::int64_t chunk, std::int64_t vocab_tile) {
    auto n = hidden.size(0);
    running all{n, hidden.options().dtype(working_type(hidden))};
    auto tile = choose({temperature, chunk, vocab_tile}, hidden);
    for_each_tile(n, weight.size(0), tile, [&](auto t, auto tokens, auto v, auto width) {
      absorb(all, t,
             tile_logits(hidden.narrow(0, t, tokens), weight.narrow(0, v, width), temperature),
             targets.narrow(0, t, tokens), v);
    });
    auto log_sum = all.sum.log();
    auto lse = all.max + log_sum;
    auto logp = all.target - lse;
    auto entropy = log_sum - all.weighted / all.sum;
    auto top1 = all.target.ge(all.max);
    context->save_for_backward({hidden, weight, targets, lse, entropy});
    context->saved_data["temperature"] = temperature;
    context->saved_data["chunk"] = tile.tokens;
    context->saved_data["vocab_tile"] = tile.vocabulary;
    context->mark_non_differentiable({top1});
    context->set_materialize_grads(false);
    return {logp, entropy, top1};
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients);
};

/// d/dlogits of g·logp + h·entropy for one tile, in place of the logits:
///   g·(1{target} − p) − h·p·(log p + entropy), over the temperature.
void to_logit_gradient(at::Tensor& logits, const at::Tensor& lse, const at::Tensor& entropy,
                       const at::Tensor& g, const at::Tensor& h, const target_columns& at_target,
                       double temperature) {
  auto& log_p = logits.sub_(lse.unsqueeze(1));
  if (h.defined()) {
    auto slope = (log_p + entropy.unsqueeze(1)).mul_(h.unsqueeze(1)).add_(g.unsqueeze(1)).neg_();
    log_p.exp_().mul_(slope);
  } else {
    log_p.exp_().mul_(g.neg().unsqueeze(1));
  }
  log_p.scatter_add_(1, at_target.column.unsqueeze(1),
                     at::where(at_target.inside, g, 0.0).unsqueeze(1));
  if (temperature != 1)
    log_p.div_(temperature);
}

tensor_list token_logprob_function::backward(AutogradContext* context, tensor_list gradients) {
  at::NoGradGuard no_grad;
  auto saved = context->get_saved_variables();
  const auto& hidden = saved[0];
  const auto& weight = saved[1];
  const auto& targets = saved[2];
  const auto& lse = saved[3];
  const auto& entropy = saved[4];
  auto temperature = context->saved_data["temperature"].toDouble();
  tiling tile{context->saved_data["chunk"].toInt(), context->saved_data["vocab_tile"].toInt()};
  auto g = gradients[0].defined() ? gradients[0].contiguous() : at::zeros_like(lse);
  auto h = gradients[1];
  auto wants_hidden = context->needs_input_grad(0);
  auto wants_weight = context->needs_input_grad(1);

  // Sums over tiles are kept in fp32 for half-precision inputs. A slice of the head's gradient is
  // complete once its tiles are done, so only the slice needs the wider type.
  auto wide = hidden.options().dtype(working_type(hidden));
  auto same_type = working_type(hidden) == hidden.scalar_type();
  auto grad_hidden = wants_hidden ? at::zeros(hidden.sizes(), wide) : at::Tensor{};
  auto grad_weight = wants_weight ? at::empty(weight.sizes(), weight.options()) : at::Tensor{};
  at::Tensor slice;
  for_each_tile(hidden.size(0), weight.size(0), tile, [&](auto t, auto tokens, auto v, auto width) {
    auto rows = hidden.narrow(0, t, tokens);
    auto head = weight.narrow(0, v, width);
    auto logits = tile_logits(rows, head, temperature);
    auto part = [&](const at::Tensor& x) { return x.defined() ? x.narrow(0, t, tokens) : x; };
    to_logit_gradient(logits, part(lse), part(entropy), part(g), part(h),
                      {part(targets), v, width}, temperature);
    auto d = same_type ? logits : logits.to(hidden.scalar_type());
    if (wants_hidden) {
      auto into = grad_hidden.narrow(0, t, tokens);
      if (same_type)
        into.addmm_(d, head);
      else
        into.add_(at::mm(d, head));
    }
    if (!wants_weight)
      return;
    auto final_slice = grad_weight.narrow(0, v, width);
    if (t == 0)
      slice = same_type ? final_slice : at::empty(head.sizes(), wide);
    if (same_type)
      slice.addmm_(d.t(), rows, /*beta=*/t == 0 ? 0 : 1);
    else if (t == 0)
      slice.copy_(at::mm(d.t(), rows));
    else
      slice.add_(at::mm(d.t(), rows));
    if (!same_type && t + tokens == hidden.size(0))
      final_slice.copy_(slice);
  });
  if (wants_weight && hidden.size(0) == 0)
    grad_weight.zero_();
  if (wants_hidden && !same_type)
    grad_hidden = grad_hidden.to(hidden.scalar_type());
  return {grad_hidden, grad_weight, {}, {}, {}, {}};
}

std::string shapes(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets) {
  std::ostringstream text;
  text << "hidden " << hidden.sizes() << ", head_weight " << weight.sizes() << ", targets "
       << targets.sizes();
  return text.str();
}

} // namespace

token_logprobs_result token_logprobs(const at::Tensor& hidden, const at::Tensor& head_weight,
                                     const at::Tensor& targets,
                                     const token_logprob_options& options) {
  ensure(hidden.dim() == 2 && head_weight.dim() == 2 && targets.dim() == 1
           && hidden.size(1) == head_weight.size(1) && hidden.size(0) == targets.size(0)
           && hidden.scalar_type() == head_weight.scalar_type()
           && targets.scalar_type() == at::kLong && head_weight.size(0) > 0,
         [&] { return "token_logprobs: shapes or types don't fit: "
                      + shapes(hidden, head_weight, targets); });
  ensure(options.temperature > 0, "token_logprobs: the temperature must be above 0");
  if (targets.numel() > 0) {
    auto least = targets.min().item<std::int64_t>();
    auto most = targets.max().item<std::int64_t>();
    ensure(least >= 0 && most < head_weight.size(0), [&] {
      return "token_logprobs: targets go from " + std::to_string(least) + " to "
             + std::to_string(most) + ", the vocabulary has "
             + std::to_string(head_weight.size(0));
    });
  }
  auto results = token_logprob_function::apply(hidden, head_weight, targets, options.temperature,
                                               options.chunk, options.vocab_tile);
  return {results[0], results[1], results[2]};
}

} // namespace millrace::policy_loss
