// What a step does beside the gradient, over several ranks: exact old log-probs, the critic, bf16, and
// norms over shared tokens.

#include "runtime/old_logit_question.hpp"
#include "test/trainer/ranks.hpp"
#include "trainer/old_logit_worker.hpp"

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::trainer;
using namespace millrace::toy;

namespace {

/// Steps 0 … n − 1 on what looks sampled by several versions; of interrupt's supply the batches to
/// come, of dedicated's what a worker beside rank 0 has computed of every other group.
std::vector<step_statistics> steps(const settings& s, int n) {
  auto p = policy::create(s, nullptr, start_ranks(s, rank_command()));
  auto worker = p.old_logit_helper();
  auto batch = [](int v) {
    return sibling_groups(static_cast<std::uint64_t>(20 + v), 6, 4, {v}, 4);
  };
  std::vector<step_statistics> out;
  for (int v = 0; v < n; ++v) {
    auto groups = batch(v);
    for (auto& g : groups) { // ids are a run's
      g.group += 100 * v;
      for (auto& r : g.rollouts)
        r.id.group += 100 * v;
    }
    old_logit_supply supply;
    if (s.algorithm.old_logits == old_logits_source::interrupt) {
      for (const auto& g : groups)
        supply.in_flight.insert(supply.in_flight.end(), g.rollouts.begin(), g.rollouts.end());
      supply.oldest_sampling = {std::max(0, v - 4)};
    }
    if (worker) {
      std::vector<scored_group> half(groups.begin(), groups.begin() + 3);
      worker->add(half);
      while (worker->work()) {
      }
      supply = worker->take(old_logit_question_of({{v}, groups}));
    }
    out.push_back(p.step({v}, groups, supply));
  }
  return out;
}

settings small(int dp, int tp) {
  auto s = grid_settings(dp, tp);
  s.trainer.lr = 1e-3; // ranks' sums differ in the last bits, and steps make that more
  s.trainer.epochs = 1;
  return s;
}

} // namespace

TEST_CASE("exact old log-probs over ranks are one process's", "[ranks]") {
  at::set_num_threads(1);
  struct grid {
    old_logits_source source;
    int dp, tp;
  };
  for (auto g : {grid{old_logits_source::snapshot, 2, 1}, grid{old_logits_source::snapshot, 1, 2},
                 grid{old_logits_source::interrupt, 2, 1}, grid{old_logits_source::dedicated, 2, 1}}) {
    INFO(names(g.source)[static_cast<std::size_t>(g.source)] << ", dp " << g.dp << ", tp " << g.tp);
    auto with = [&](int dp, int tp) {
      auto s = small(dp, tp);
      s.algorithm.old_logits = g.source;
      s.algorithm.interrupt.slots = 5;
      return steps(s, 5);
    };
    auto alone = with(1, 1), ranks = with(g.dp, g.tp);
    double largest = 0;
    std::size_t tokens = 0;
    for (std::size_t v = 0; v < alone.size(); ++v) {
      REQUIRE(alone[v].old_logit_routes == ranks[v].old_logit_routes);
      REQUIRE(alone[v].old_logp.size() == ranks[v].old_logp.size());
      for (std::size_t i = 0; i < alone[v].old_logp.size(); ++i, ++tokens)
        largest = std::max(largest, std::abs(double(alone[v].old_logp[i]) - ranks[v].old_logp[i]));
      REQUIRE(ranks[v].old_logits_served.count("ewma") == 0);
    }
    INFO(tokens << " tokens, largest difference " << largest);
    REQUIRE(tokens > 300);
    REQUIRE(largest < 1e-4);
    if (g.source == old_logits_source::dedicated) {
      REQUIRE(ranks.back().old_logits_served.count("dedicated") == 1);
      REQUIRE(ranks.back().old_logits_served.count("snapshot") == 1);
    }
  }
}

TEST_CASE("a critic over ranks learns as one process's", "[ranks]") {
  at::set_num_threads(1);
  for (auto kind : {critic_kind::head, critic_kind::model}) {
    auto with = [&](int dp, int tp) {
      auto s = small(dp, tp);
      s.algorithm.advantage = {"gae"};
      s.algorithm.critic.kind = kind;
      return steps(s, 4);
    };
    auto alone = with(1, 1);
    for (auto [dp, tp] : {std::pair{2, 1}, {1, 2}}) {
      if (kind == critic_kind::head && tp > 1)
        continue;
      INFO((kind == critic_kind::head ? "head" : "model") << ", dp " << dp << ", tp " << tp);
      auto ranks = with(dp, tp);
      for (std::size_t v = 0; v < alone.size(); ++v) {
        REQUIRE(ranks[v].value_loss == Approx(alone[v].value_loss).epsilon(1e-4));
        REQUIRE(ranks[v].value_mean == Approx(alone[v].value_mean).margin(1e-5));
        REQUIRE(ranks[v].critic_grad_norm == Approx(alone[v].critic_grad_norm).epsilon(1e-3));
        REQUIRE(ranks[v].loss == Approx(alone[v].loss).epsilon(1e-3).margin(1e-5));
      }
    }
  }
}

TEST_CASE("tp ranks that share the tokens train as one process does", "[ranks]") {
  at::set_num_threads(1);
  auto alone = train_with(grid_settings(1, 1));
  auto s = grid_settings(1, 2);
  s.trainer.parallel.sequence = true;
  for (bool again : {false, true}) {
    s.trainer.activation_checkpointing = again;
    require_equal(train_with(s), alone);
  }
}

TEST_CASE("bf16 over ranks is bf16 in one process", "[ranks]") {
  at::set_num_threads(1);
  auto with = [](int dp, int tp) {
    auto s = small(dp, tp);
    s.trainer.compute = compute_dtype::bf16;
    return steps(s, 3);
  };
  auto alone = with(1, 1), two = with(2, 1), split = with(1, 2);
  for (std::size_t v = 0; v < alone.size(); ++v) {
    REQUIRE(two[v].loss == Approx(alone[v].loss).epsilon(1e-2).margin(1e-3));
    REQUIRE(two[v].grad_norm == Approx(alone[v].grad_norm).epsilon(1e-2));
    REQUIRE(split[v].grad_norm == Approx(alone[v].grad_norm).epsilon(5e-2));
  }
}
