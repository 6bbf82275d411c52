#include "policy_loss/token_logprobs.hpp"
#include "random_batch.hpp"
#include "runtime/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::policy_loss;
using namespace millrace::policy_loss::testing;

namespace {

struct problem {
  at::Tensor hidden, weight, targets, on_logp, on_entropy;

  problem(std::int64_t n, std::int64_t d, std::int64_t v, at::ScalarType type) {
    hidden = at::randn({n, d}, at::kDouble).to(type).set_requires_grad(true);
    weight = at::randn({v, d}, at::kDouble).mul(0.7).to(type).set_requires_grad(true);
    targets = at::randint(v, {n}, at::kLong);
    on_logp = at::randn({n}, at::kDouble);
    on_entropy = at::randn({n}, at::kDouble);
  }
};

token_logprobs_result naive(const problem& p, double temperature) {
  auto log_p =
    at::log_softmax(p.hidden.matmul(p.weight.t())
                        .to(p.hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat)
                      / temperature,
                    1);
  auto logp = log_p.gather(1, p.targets.unsqueeze(1)).squeeze(1);
  return {logp, (log_p.exp() * log_p).sum(1).neg(), logp.eq(log_p.amax(1))};
}

struct gradients {
  at::Tensor hidden, weight;
};

gradients backward(const problem& p, const token_logprobs_result& r, bool with_entropy) {
  auto total = (r.logp.to(at::kDouble) * p.on_logp).sum();
  if (with_entropy)
    total = total + (r.entropy.to(at::kDouble) * p.on_entropy).sum();
  auto g = torch::autograd::grad({total}, {p.hidden, p.weight});
  return {g[0], g[1]};
}

double relative(const at::Tensor& a, const at::Tensor& b) {
  return largest_difference(a, b) / std::max(1e-300, b.to(at::kDouble).abs().max().item<double>());
}

} // namespace

TEST_CASE("chunked log-probs, entropy, top-1 and gradients equal the naive route") {
  struct shape {
    std::int64_t n, d, v, chunk, tile;
  };
  std::uint64_t seed = 0;
  for (auto s : {shape{1, 3, 1, 0, 0}, {7, 5, 11, 3, 4}, {13, 8, 64, 13, 64}, {33, 16, 101, 8, 33},
                 {20, 32, 5000, 0, 0}, {270, 16, 2100, 0, 0}})
    for (auto type : {at::kDouble, at::kFloat})
      for (auto temperature : {1.0, 0.7}) {
        at::manual_seed(++seed);
        INFO("seed " << seed << ", " << s.n << 'x' << s.d << " -> " << s.v << " at "
                     << temperature);
        problem p{s.n, s.d, s.v, type};
        auto got = token_logprobs(p.hidden, p.weight, p.targets,
                                  {.temperature = temperature, .chunk = s.chunk,
                                   .vocab_tile = s.tile});
        auto want = naive(p, temperature);
        auto tolerance = type == at::kDouble ? 1e-12 : 1e-5;
        REQUIRE(largest_difference(got.logp, want.logp) < tolerance * 10);
        REQUIRE(largest_difference(got.entropy, want.entropy) < tolerance * 10);
        if (type == at::kDouble)
          REQUIRE(got.top1.equal(want.top1));
        for (auto with_entropy : {false, true}) {
          auto g = backward(p, got = token_logprobs(p.hidden, p.weight, p.targets,
                                                    {.temperature = temperature, .chunk = s.chunk,
                                                     .vocab_tile = s.tile}),
                            with_entropy);
          auto h = backward(p, naive(p, temperature), with_entropy);
          REQUIRE((s.v == 1 || relative(g.hidden, h.hidden) < tolerance));
          REQUIRE((s.v == 1 || relative(g.weight, h.weight) < tolerance));
        }
      }
}

TEST_CASE("half precision: the logits of the inputs' dtype, the rest in fp32") {
  at::manual_seed(5);
  problem p{40, 16, 300, at::kBFloat16};
  token_logprob_options options{.temperature = 1, .chunk = 16, .vocab_tile = 128};
  auto got = token_logprobs(p.hidden, p.weight, p.targets, options);
  auto want = naive(p, 1);
  REQUIRE(got.logp.scalar_type() == at::kFloat);
  REQUIRE(largest_difference(got.logp, want.logp) < 1e-4);
  auto g = backward(p, got, true), h = backward(p, want, true);
  REQUIRE(g.weight.scalar_type() == at::kBFloat16);
  REQUIRE(relative(g.hidden, h.hidden) < 0.02);
  REQUIRE(relative(g.weight, h.weight) < 0.02);
}

TEST_CASE("extreme logits stay finite") {
  at::manual_seed(6);
  problem p{5, 4, 50, at::kFloat};
  auto hidden = (p.hidden.detach() * 1e4).set_requires_grad(true);
  auto got = token_logprobs(hidden, p.weight, p.targets, {.chunk = 2, .vocab_tile = 7});
  REQUIRE_FALSE(has_nan(got.logp));
  REQUIRE_FALSE(has_nan(got.entropy));
  (got.logp.sum() + got.entropy.sum()).backward();
  REQUIRE_FALSE(has_nan(hidden.grad()));
}

TEST_CASE("without gradient, as when scoring") {
  at::manual_seed(8);
  problem p{9, 4, 30, at::kFloat};
  auto want = token_logprobs(p.hidden, p.weight, p.targets);
  c10::InferenceMode inference;
  auto got = token_logprobs(p.hidden, p.weight, p.targets);
  REQUIRE_FALSE(got.logp.requires_grad());
  REQUIRE(largest_difference(got.logp, want.logp.detach()) == 0);
}

TEST_CASE("no tokens, one input without gradient, and bad input") {
  at::manual_seed(7);
  problem p{6, 4, 20, at::kFloat};
  auto none = token_logprobs(p.hidden.narrow(0, 0, 0), p.weight, p.targets.narrow(0, 0, 0));
  REQUIRE(none.logp.numel() == 0);
  none.logp.sum().backward();
  REQUIRE(p.weight.grad().eq(0).all().item<bool>());
  auto frozen = token_logprobs(p.hidden, p.weight.detach(), p.targets);
  frozen.logp.sum().backward();
  REQUIRE(p.hidden.grad().defined());
  REQUIRE_THROWS_AS(token_logprobs(p.hidden, p.weight, p.targets + 20), invariant_error);
  REQUIRE_THROWS_AS(token_logprobs(p.hidden, p.weight.narrow(1, 0, 3), p.targets), invariant_error);
  REQUIRE_THROWS_AS(token_logprobs(p.hidden, p.weight, p.targets, {.temperature = 0}),
                    invariant_error);
}
