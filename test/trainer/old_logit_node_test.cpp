// The old-logit worker as a node of its own has it: versions come in one by one, late or never.

#include "runtime/old_logit_question.hpp"
#include "test/trainer/toy.hpp"
#include "trainer/old_logit_scoring.hpp"
#include "trainer/old_logit_versions.hpp"
#include "trainer/old_logit_worker.hpp"
#include "trainer/train_step.hpp"
#include "trainer/version_ring.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>

using namespace millrace;
using namespace millrace::trainer;
using namespace millrace::toy;

namespace {

constexpr std::int32_t eta = 4;

/// With `node`, as a cluster that has the old-logit actor on a node of its own.
settings dedicated(bool node) {
  auto s = tiny_settings();
  s.rollout.eta = eta;
  s.rollout.group_size = 3;
  s.rollout.batch_size = 12;
  s.trainer.lr = 2e-2; // so that a wrong version shows
  s.trainer.micro_batch_tokens = 60;
  s.algorithm.loss = {"decoupled_ppo"};
  s.algorithm.old_logits = old_logits_source::dedicated;
  if (node) {
    s.cluster.nodes.resize(2);
    s.cluster.nodes[0].actors.trainer = 1;
    s.cluster.nodes[1].name = "old";
    s.cluster.nodes[1].actors.old_logits = 1;
  }
  return s;
}

/// Of a step from `v`, with numbers of their own.
std::vector<scored_group> batch_of(version v) {
  auto groups = random_groups(11 + static_cast<std::uint64_t>(v.value), 4, 3, v, eta);
  for (auto& g : groups) {
    g.group += 100 * v.value;
    for (auto& r : g.rollouts)
      r.id.group = g.group;
  }
  return groups;
}

/// What the wire does: fp32, by name.
void fetch(old_logit_versions& node, const model::transformer& network, version v) {
  auto from = network.views(), to = node.staging();
  REQUIRE(from.size() == to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    REQUIRE(from[i].name == to[i].name);
    REQUIRE(from[i].bytes() == to[i].bytes());
    std::memcpy(to[i].data, from[i].data, from[i].bytes());
  }
  REQUIRE(node.keep(v));
}

void work_off(old_logit_worker& w) {
  while (w.work()) {
  }
}

std::int64_t known_tokens(const old_logit_supply& s) {
  std::int64_t n = 0;
  for (const auto& k : s.known)
    n += std::count_if(k.logp.begin(), k.logp.end(), is_known);
  return n;
}

} // namespace

TEST_CASE("a node's old log-probs are bit for bit those of the trainer's process") {
  auto here = tiny_network(), there = tiny_network();
  reinforcement by_actor(here, dedicated(false)), by_node(there, dedicated(true));
  auto actor = by_actor.old_logit_helper({0});
  REQUIRE(by_node.old_logit_helper({0}) == nullptr);
  old_logit_versions node(dedicated(true), there.config());
  std::int64_t served = 0, all = 0;
  for (version v{0}; v.value < 10; v = v.next()) {
    auto groups = batch_of(v);
    fetch(node, there, v);
    actor->add(groups);
    node.worker()->add(groups);
    work_off(*actor);
    work_off(*node.worker());
    auto a = by_actor.step(v, groups, actor->take(old_logit_question_of({v, groups})));
    auto supply = node.worker()->take(old_logit_question_of({v, groups}));
    REQUIRE(supply.hidden_s > 0);
    auto b = by_node.step(v, groups, supply);
    REQUIRE(a.old_logp == b.old_logp);
    REQUIRE(here.flat().equal(there.flat()));
    REQUIRE(b.old_logits.versions == 0); // none is kept twice
    served += b.old_logits_served["dedicated"];
    all += b.trained_tokens;
  }
  REQUIRE(served == all);
  REQUIRE(node.worker()->progress().known == all);
  REQUIRE(node.worker()->progress().versions == eta + 1);
}

TEST_CASE("tokens wait for their version, and not for one that was passed over") {
  auto network = tiny_network();
  old_logit_versions node(dedicated(true), network.config());
  auto& w = *node.worker();
  train_batch batch{{3}, batch_of({3})};
  std::set<std::int32_t> present;
  for (const auto& g : batch.groups)
    for (const auto& r : g.rollouts)
      for (auto v : r.versions)
        if (v >= 0)
          present.insert(v);
  REQUIRE(present == std::set<std::int32_t>{0, 1, 2, 3});
  w.add(batch.groups);
  REQUIRE(!w.can_work()); // nothing has come
  REQUIRE(!w.work());
  REQUIRE(w.waiting() == batch.groups.size());
  auto question = old_logit_question_of(batch);
  w.want(question);
  REQUIRE(!w.settled(question));
  fetch(node, network, {0});
  work_off(w);
  REQUIRE(!w.settled(question)); // 1 and 2 may still come
  fetch(node, network, {2});  // 1 never will
  work_off(w);
  REQUIRE(w.settled(question)); // 3 is the trainer's own
  auto supply = w.take(question);
  REQUIRE(supply.hidden_s == 0); // the trainer has waited for all of it
  auto p = w.progress();
  REQUIRE(p.busy_s > 0);
  REQUIRE(p.known == known_tokens(supply));
  REQUIRE(p.known > 0);
  REQUIRE(p.no_weights > 0);
  REQUIRE(p.late > 0);
  REQUIRE(w.waiting() == 0);
}

TEST_CASE("what the trainer waits for is computed first, without tokens beyond η") {
  auto network = tiny_network();
  old_logit_versions node(dedicated(true), network.config());
  auto& w = *node.worker();
  for (int v = 2; v < 6; ++v) // 0 and 1 are not there, and nobody waits for them
    fetch(node, network, {v});
  auto before = batch_of({9});
  w.add(before);
  train_batch batch{{6}, batch_of({4})};
  w.add(batch.groups);
  std::int64_t wanted = 0;
  for (auto& g : batch.groups)
    for (auto& r : g.rollouts)
      for (auto& v : r.versions) {
        v = staleness({6}, {v}) > eta ? -1 : v; // masked in the buffer
        wanted += v >= 0 ? 1 : 0;
      }
  auto question = old_logit_question_of(batch);
  w.want(question);
  while (!w.settled(question))
    REQUIRE(w.work());
  REQUIRE(w.waiting() == before.size());
  REQUIRE(known_tokens(w.take(question)) >= wanted);
  REQUIRE(w.progress().known == wanted);
  REQUIRE(w.progress().late + w.progress().no_weights == 0);
}

TEST_CASE("groups that an old-logit worker never had are named, and not waited for; nor other texts") {
  auto network = tiny_network();
  old_logit_versions node(dedicated(true), network.config());
  auto& w = *node.worker();
  for (int v = 0; v < 4; ++v)
    fetch(node, network, {v});
  train_batch batch{{4}, batch_of({4})};
  auto first = batch.groups.front();
  w.add(std::span(&first, 1));
  auto& other = batch.groups.front().rollouts.front();
  other.tokens.back() = 1 - other.tokens.back(); // same id, another text
  auto question = old_logit_question_of(batch);
  std::vector<std::int64_t> others;
  for (const auto& g : std::span(batch.groups).subspan(1))
    others.push_back(g.group);
  REQUIRE(w.unknown(question) == others);
  w.want(question);
  work_off(w);
  REQUIRE(w.settled(question));
  auto supply = w.take(question);
  REQUIRE(supply.known.size() == first.rollouts.size() - 1);
  auto p = w.progress();
  std::int64_t trained = 0;
  for (const auto& r : question.rollouts)
    trained += r.trained_tokens;
  REQUIRE(p.known + p.no_weights + p.late == trained);
  REQUIRE(p.late > 0);
}

TEST_CASE("without its node a step falls back, and says to whom it looked") {
  auto network = tiny_network();
  reinforcement trainer(network, dedicated(true));
  for (version v{0}; v.value < 6; v = v.next()) {
    auto stats = trainer.step(v, batch_of(v));
    REQUIRE(stats.old_logits_served["dedicated"] == 0);
    auto told = std::any_of(stats.remarks.begin(), stats.remarks.end(), [](const auto& r) {
      return r.find("node old has not computed them") != std::string::npos;
    });
    REQUIRE(told == (v.value == 1)); // once, when tokens of an older version come
    if (v.value > 0)
      REQUIRE(stats.old_logits_served["ewma"] > 0);
  }
}

TEST_CASE("a node whose budget is too small says so, and computes with what it has") {
  auto network = tiny_network();
  auto s = dedicated(true);
  s.algorithm.snapshot.memory_bytes = 2 * static_cast<std::int64_t>(network.flat().nbytes());
  old_logit_versions node(s, network.config());
  for (int v = 0; v < 5; ++v)
    REQUIRE(node.keep({v}) == (v < 2));
  REQUIRE(node.worker()->progress().versions == 2);
  train_batch batch{{4}, batch_of({4})};
  node.worker()->add(batch.groups);
  work_off(*node.worker());
  static_cast<void>(node.worker()->take(old_logit_question_of(batch)));
  auto p = node.worker()->progress();
  REQUIRE(p.known > 0);
  REQUIRE(p.no_weights > 0);
  REQUIRE(p.late == 0);
}

TEST_CASE("an old-logit worker has room for twice the budget") {
  auto network = tiny_network();
  auto s = dedicated(true);
  old_logit_versions node(s, network.config());
  auto& w = *node.worker();
  for (int v = 0; v < 50; ++v)
    w.add(batch_of({v}));
  REQUIRE(w.waiting() == 2 * ((eta + 1) * 12 / 3 + 1));
  fetch(node, network, {0});
  REQUIRE(!w.can_work()); // the oldest groups were given up
}
