#pragma once

// Policies over several ranks, each a process: this program again.

#include "test/trainer/toy.hpp"
#include "trainer/parallel.hpp"
#include "trainer/policy.hpp"

#include <catch2/catch.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace millrace::toy {

using namespace trainer;

/// This program again, which then runs the test case "[.rank]" of parallel_test.cpp as a rank.
inline std::vector<std::string> rank_command() {
  return {"/bin/sh", "-c",
          "MILLRACE_TEST_RANK=$2 MILLRACE_TEST_STORE=$4 exec \"$0\" '[.rank]' >/dev/null",
          std::filesystem::read_symlink("/proc/self/exe").string()};
}

inline settings grid_settings(int dp, int tp, bool zero1 = false) {
  auto s = tiny_settings();
  s.model.architecture.kv_heads = 2;
  s.trainer.minibatches = 2;
  s.trainer.epochs = 2;
  s.trainer.micro_batch_tokens = 60;
  s.trainer.eps = 1e-4; // small differences of small gradients stay small
  s.trainer.weight_decay = 0.1;
  s.algorithm.kl.coefficient = 0.05;
  s.algorithm.kl.reference = kl_reference::initial;
  s.trainer.parallel = {.dp = dp, .tp = tp, .zero1 = zero1, .timeout_s = 300};
  return s;
}

struct course {
  std::vector<float> parameters;
  std::vector<step_statistics> steps;
  double warm_up_loss = 0;
};

inline std::vector<demonstration> some_demonstrations() {
  std::vector<demonstration> all;
  for (int i = 0; i < 7; ++i)
    all.push_back({{1 + i, 3, 5, 2 + i, 4}, 2 + i % 2});
  return all;
}

/// Steps from `first` to `last`, with a warm-up step before the first.
inline course take(policy& p, int first, int last) {
  course c;
  if (first == 0)
    c.warm_up_loss = p.warm_up(some_demonstrations()).loss;
  for (int v = first; v < last; ++v)
    c.steps.push_back(p.step({v}, sibling_groups(static_cast<std::uint64_t>(10 + v), 6, 4, {v}, 4)));
  c.parameters = parameters(p.views());
  return c;
}

inline course train_with(const settings& s) {
  auto p = policy::create(s, nullptr, start_ranks(s, rank_command()));
  return take(p, 0, 3);
}

inline void require_equal(const course& a, const course& b) {
  REQUIRE(a.warm_up_loss == Approx(b.warm_up_loss).epsilon(1e-5));
  REQUIRE(a.steps.size() == b.steps.size());
  for (std::size_t i = 0; i < a.steps.size(); ++i) {
    INFO("step " << i);
    const auto &x = a.steps[i], &y = b.steps[i];
    REQUIRE(x.loss == Approx(y.loss).epsilon(1e-4).margin(1e-5));
    REQUIRE(x.kl_loss == Approx(y.kl_loss).epsilon(1e-3).margin(1e-6));
    REQUIRE(x.grad_norm == Approx(y.grad_norm).epsilon(1e-3));
    REQUIRE(x.entropy == Approx(y.entropy).epsilon(1e-4));
    REQUIRE(x.kl_infer_train == Approx(y.kl_infer_train).epsilon(1e-3).margin(1e-5));
    REQUIRE(x.trained_tokens == y.trained_tokens);
    REQUIRE(x.updates == y.updates);
    REQUIRE(x.mask_fraction == Approx(y.mask_fraction).margin(1e-6));
  }
  REQUIRE(largest_difference(a.parameters, b.parameters) < 2e-4);
}

} // namespace millrace::toy
