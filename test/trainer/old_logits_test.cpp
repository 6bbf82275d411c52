#include "trainer/old_logits.hpp"

#include "runtime/old_logit_question.hpp"
#include "test/trainer/scratch_folder.hpp"
#include "test/trainer/toy.hpp"
#include "trainer/old_logit_scoring.hpp"
#include "trainer/old_logit_store.hpp"
#include "trainer/old_logit_worker.hpp"
#include "trainer/train_step.hpp"
#include "trainer/version_ring.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

using namespace millrace;
using namespace millrace::trainer;
using namespace millrace::toy;

namespace {

constexpr std::int32_t eta = 8;

settings exact_settings(old_logits_source source) {
  auto s = tiny_settings();
  s.rollout.eta = eta;
  s.trainer.lr = 2e-2; // so that a wrong version shows
  s.trainer.minibatches = 2;
  s.trainer.micro_batch_tokens = 60;
  s.algorithm.loss = {"decoupled_ppo"};
  s.algorithm.old_logits = source;
  return s;
}

/// The log-prob of each sampled token under the network of its version, one sequence at a time.
std::vector<float> direct(const std::map<std::int32_t, model::transformer>& versions,
                          const std::vector<scored_group>& groups) {
  at::NoGradGuard no_grad;
  std::vector<float> out;
  for (const auto& g : groups)
    for (const auto& r : g.rollouts)
      for (std::size_t t = 0; t < r.tokens.size(); ++t) {
        if (r.versions[t] < 0)
          continue;
        std::vector<std::int32_t> prefix(r.tokens.begin(),
                                         r.tokens.begin() + static_cast<std::ptrdiff_t>(t));
        auto logits = versions.at(r.versions[t]).logits(model::pack({prefix}));
        out.push_back(
          at::log_softmax(logits[static_cast<std::int64_t>(t) - 1], 0)[r.tokens[t]].item<float>());
      }
  return out;
}

/// A stream in small: rollouts that grow while versions pass, are buffered, and trained on.
class growing {
public:
  explicit growing(std::uint64_t seed, int running) : random_{seed, 1} {
    for (int i = 0; i < running; ++i)
      running_.push_back(fresh());
  }

  /// Every running rollout gets up to two more tokens, sampled with `v`.
  void sample(version v) {
    for (auto& r : running_)
      for (auto n = random_.below(3); n > 0; --n)
        add(r, v);
  }

  std::vector<rollout> in_flight() const {
    auto all = running_;
    for (const auto& [group, r] : first_of_two_)
      all.push_back(r);
    for (const auto& g : buffer_)
      all.insert(all.end(), g.rollouts.begin(), g.rollouts.end());
    return all;
  }

  /// Long enough ones are finished, in groups of two; the oldest groups are the batch.
  std::vector<scored_group> batch(std::size_t groups, version from,
                                  std::vector<scored_group>* newly = nullptr) {
    for (auto& r : running_)
      if (r.generated() >= 8) {
        auto done = std::exchange(r, fresh());
        if (auto sibling = first_of_two_.extract(done.id.group)) {
          buffer_.push_back({done.id.group, {}, {sibling.mapped(), done}});
          if (newly)
            newly->push_back(buffer_.back());
        } else {
          first_of_two_[done.id.group] = done;
        }
      }
    std::vector<scored_group> out;
    while (out.size() < groups && !buffer_.empty()) {
      out.push_back(buffer_.front());
      buffer_.erase(buffer_.begin());
    }
    for (auto& g : out)
      for (auto& r : g.rollouts)
        for (auto& v : r.versions) // what replay does with tokens beyond η
          if (v >= 0 && from.value - v > eta)
            v = -1;
    return out;
  }

private:
  rollout fresh() {
    rollout r;
    r.id = {serial_ / 2, static_cast<std::int32_t>(serial_ % 2)};
    ++serial_;
    r.reward = static_cast<float>(random_.below(2));
    r.prompt_length = 2;
    r.tokens = {static_cast<std::int32_t>(random_.below(12)), 3};
    r.versions = {-1, -1};
    r.behaviour_logp = {0, 0};
    return r;
  }
  void add(rollout& r, version v) {
    r.tokens.push_back(static_cast<std::int32_t>(random_.below(12)));
    r.versions.push_back(v.value);
    r.behaviour_logp.push_back(-2.5F);
  }

  random_stream random_;
  std::vector<rollout> running_;
  std::map<std::int64_t, rollout> first_of_two_; ///< by group: finished, the other is not
  std::vector<scored_group> buffer_;
  std::int64_t serial_ = 0;
};

struct outcome {
  std::vector<std::vector<float>> logp, expected; ///< by step
  std::map<std::string, std::int64_t> served;
  std::vector<step_statistics> stats;
};

double largest_error(const outcome& o) {
  double largest = 0;
  for (std::size_t i = 0; i < o.logp.size(); ++i) {
    REQUIRE(o.logp[i].size() == o.expected[i].size());
    for (std::size_t t = 0; t < o.logp[i].size(); ++t)
      largest = std::max(largest, std::abs(double(o.logp[i][t]) - o.expected[i][t]));
  }
  return largest;
}

/// Trains on the growing stream, the generators being late by `lag` versions at times.
outcome train(const settings& s, std::uint64_t seed, int steps, int lag = 1) {
  auto network = tiny_network();
  reinforcement trainer(network, s);
  auto helper = trainer.old_logit_helper({0});
  growing stream(seed, 24);
  std::map<std::int32_t, model::transformer> versions;
  outcome out;
  for (version v{0}; v.value < steps; v = v.next()) {
    versions.emplace(v.value, network.frozen_copy());
    // First some are still sampled with the version before; then the generator goes on to this one.
    stream.sample({std::max(0, v.value - lag)});
    old_logit_supply supply;
    std::vector<scored_group> newly;
    auto batch = stream.batch(4, v, &newly);
    if (s.algorithm.old_logits == old_logits_source::interrupt) {
      supply.in_flight = stream.in_flight();
      supply.oldest_sampling = {std::max(0, v.value - lag + 1)};
    }
    if (helper) {
      helper->add(newly);
      for (int i = 0; i < 8 && helper->work(); ++i) {
      }
      supply = helper->take(old_logit_question_of({v, batch}));
    }
    out.expected.push_back(direct(versions, batch));
    auto stats = trainer.step(v, batch, supply);
    out.logp.push_back(stats.old_logp);
    for (const auto& [route, n] : stats.old_logits_served)
      out.served[route] += n;
    out.stats.push_back(std::move(stats));
    stream.sample(v);
  }
  return out;
}

} // namespace

TEST_CASE("exact old log-probs: each token's is that of the version that sampled it") {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    INFO("seed " << seed);
    std::map<old_logits_source, outcome> by;
    for (auto source : {old_logits_source::snapshot, old_logits_source::dedicated,
                        old_logits_source::interrupt}) {
      auto s = exact_settings(source);
      auto& o = by[source] = train(s, seed, 24);
      INFO("strategy " << int(source));
      REQUIRE(largest_error(o) < 1e-5);
      REQUIRE(o.served.count("ewma") == 0);
      REQUIRE(o.served.count("recompute") == 0);
    }
    // Tokens are of many versions, and were served by the route that was asked for.
    auto& interrupted = by[old_logits_source::interrupt];
    auto oldest = 0;
    for (const auto& st : interrupted.stats)
      oldest = std::max(oldest, st.staleness_max);
    REQUIRE(oldest >= 4);
    REQUIRE(interrupted.served.size() == 1);
    REQUIRE(by[old_logits_source::dedicated].served["dedicated"]
            > by[old_logits_source::dedicated].served["snapshot"]);
    for (auto source : {old_logits_source::dedicated, old_logits_source::interrupt})
      for (std::size_t i = 0; i < 24; ++i)
        for (std::size_t t = 0; t < by[source].logp[i].size(); ++t)
          REQUIRE(std::abs(by[source].logp[i][t] - by[old_logits_source::snapshot].logp[i][t])
                  < 1e-5);
  }
}

TEST_CASE("the right version matters: another one's log-probs are far away") {
  auto s = exact_settings(old_logits_source::recompute);
  auto network = tiny_network();
  reinforcement trainer(network, s);
  growing stream(1, 24);
  std::map<std::int32_t, model::transformer> versions;
  double largest = 0;
  for (version v{0}; v.value < 12; v = v.next()) {
    versions.emplace(v.value, network.frozen_copy());
    stream.sample(v);
    auto batch = stream.batch(4, v);
    auto right = direct(versions, batch);
    std::map<std::int32_t, model::transformer> current;
    for (std::int32_t i = 0; i <= v.value; ++i)
      current.emplace(i, network.frozen_copy());
    auto wrong = direct(current, batch);
    for (std::size_t i = 0; i < right.size(); ++i)
      largest = std::max(largest, std::abs(double(right[i]) - wrong[i]));
    trainer.step(v, batch);
  }
  REQUIRE(largest > 0.01);
}

TEST_CASE("snapshot: what is not kept is served by the fallback, and counted") {
  for (auto fallback : {old_logits_fallback::ewma, old_logits_fallback::recompute}) {
    auto s = exact_settings(old_logits_source::snapshot);
    s.algorithm.old_logits_fallback = fallback;
    s.algorithm.snapshot.versions = 3;
    auto o = train(s, 1, 16);
    auto name = fallback == old_logits_fallback::ewma ? "ewma" : "recompute";
    REQUIRE(o.served[name] > 0);
    std::int64_t tokens = 0, remarks = 0;
    for (std::size_t i = 0; i < o.stats.size(); ++i) {
      const auto& st = o.stats[i];
      REQUIRE(st.old_logits.versions <= 2);
      tokens += st.trained_tokens;
      remarks += std::count_if(st.remarks.begin(), st.remarks.end(), [](const auto& r) {
        return r.find("kept are") != std::string::npos;
      });
      // Token by token: exact where the version was kept, and said so where it was not.
      for (std::size_t t = 0; t < st.old_logp.size(); ++t) {
        if (st.old_logit_routes[t] == old_logit_route::snapshot)
          REQUIRE(std::abs(st.old_logp[t] - o.expected[i][t]) < 1e-5);
        REQUIRE(std::isfinite(st.old_logp[t]));
      }
    }
    REQUIRE(remarks == 1);
    REQUIRE(o.served["snapshot"] + o.served[name] == tokens);
    auto values = o.stats.back().values();
    REQUIRE(values.at("old_logits_share_snapshot") + values.at(std::string("old_logits_share_") + name)
            == Approx(1));
    REQUIRE(values.at("old_logits_share_interrupt") == 0);
  }
}

TEST_CASE("snapshot: budgets hold, from memory to disk and beyond") {
  auto bytes = static_cast<std::int64_t>(tiny_network().flat().nbytes());
  scratch_folder dir;
  auto s = exact_settings(old_logits_source::snapshot);
  s.algorithm.snapshot.memory_bytes = 3 * bytes + 5;
  s.algorithm.snapshot.folder = dir.path / "versions";
  s.algorithm.old_logits_fallback = old_logits_fallback::recompute;
  s.algorithm.snapshot.disk_bytes = 100 * bytes;
  auto all = train(s, 2, 20);
  REQUIRE(largest_error(all) < 1e-5);
  REQUIRE(all.served.size() == 1);
  REQUIRE(all.stats.back().old_logits.disk_bytes == 5 * bytes);
  REQUIRE(!std::filesystem::exists(dir.path / "versions")); // tidied up
  s.algorithm.snapshot.memory_bytes = 2 * bytes + 5;
  s.algorithm.snapshot.disk_bytes = bytes;
  auto some = train(s, 2, 20);
  REQUIRE(some.served["recompute"] > 0);
  for (const auto& st : some.stats) {
    REQUIRE(st.old_logits.memory_bytes <= 2 * bytes);
    REQUIRE(st.old_logits.disk_bytes <= bytes);
  }
}

TEST_CASE("snapshot: a folder that can't be written is told before training") {
  scratch_folder dir;
  const auto file = dir.path / "file";
  std::ofstream(file) << "no folder";
  auto s = exact_settings(old_logits_source::snapshot);
  s.algorithm.snapshot.folder = file;
  s.algorithm.snapshot.disk_bytes = 1 << 20;
  auto network = tiny_network();
  REQUIRE_THROWS_WITH(
    reinforcement(network, s),
    Catch::StartsWith("algorithm.snapshot.folder: can't make " + file.string() + ": "));
  s.algorithm.old_logits = old_logits_source::recompute; // which keeps nothing
  REQUIRE_NOTHROW(reinforcement(network, s));
}

TEST_CASE("snapshot: a disk that fills while training goes on is told once, by its name") {
  scratch_folder dir;
  auto s = exact_settings(old_logits_source::snapshot);
  auto network = tiny_network();
  s.algorithm.snapshot.folder = dir.path;
  s.algorithm.snapshot.memory_bytes = static_cast<std::int64_t>(2 * network.flat().nbytes());
  s.algorithm.snapshot.disk_bytes = 1 << 30;
  reinforcement trainer(network, s);
  for (const auto& own : std::filesystem::directory_iterator(dir.path))
    if (own.is_directory())
      std::filesystem::create_symlink("/dev/full", own.path() / "v1.f32"); // v0 has room
  std::vector<std::string> remarks;
  for (version v{0}; v.value < 10; v = v.next())
    for (const auto& r : trainer.step(v, random_groups(5, 4, 3, v, eta)).remarks)
      remarks.push_back(r);
  const auto told = [&](const std::string& part) {
    return std::count_if(remarks.begin(), remarks.end(), [&](const std::string& r) {
      return r.find(part) != std::string::npos;
    });
  };
  REQUIRE(told("algorithm.snapshot.folder: can't write " + dir.path.string()) == 1);
  REQUIRE(told("No space left on device") == 1);
  REQUIRE(told("the budgets have no room") == 0);
}

TEST_CASE("interrupt: a generator that stays behind costs exactness, unless there are slots for it") {
  for (auto slots : {0, 1, 2, 3}) {
    auto s = exact_settings(old_logits_source::interrupt);
    s.algorithm.interrupt.slots = slots;
    auto o = train(s, 3, 24, 2); // tokens of v − 2 come at v
    INFO("slots " << slots);
    if (slots >= 2) {
      REQUIRE(largest_error(o) < 1e-5);
      REQUIRE(o.served.size() == 1);
    } else {
      REQUIRE(o.served["ewma"] > 0);
      if (slots == 1)
        REQUIRE(2 * o.served["interrupt"] > o.served["ewma"]);
    }
  }
}

TEST_CASE("without anything computed beforehand the trainer does it itself") {
  auto s = exact_settings(old_logits_source::dedicated);
  auto network = tiny_network();
  reinforcement trainer(network, s);
  auto helper = trainer.old_logit_helper({0});
  std::map<std::int32_t, model::transformer> versions;
  for (version v{0}; v.value < 4; v = v.next()) {
    versions.emplace(v.value, network.frozen_copy());
    auto groups = random_groups(7 + static_cast<std::uint64_t>(v.value), 4, 3, v, eta);
    auto expected = direct(versions, groups);
    auto stats = trainer.step(v, groups);
    REQUIRE(stats.old_logits_served.size() == 1);
    REQUIRE(stats.old_logits_served.begin()->first == "snapshot");
    for (std::size_t i = 0; i < expected.size(); ++i)
      REQUIRE(std::abs(stats.old_logp[i] - expected[i]) < 1e-5);
  }
}

TEST_CASE("one forward per version present, over no more than its tokens' prefixes") {
  auto network = tiny_network();
  rollout r;
  r.tokens = {1, 2, 3, 4, 5, 6};
  r.versions = {-1, -1, 3, 3, 4, 4};
  r.behaviour_logp.assign(6, 0);
  std::vector<scored_group> groups{{0, {}, {r}}};
  auto sequences = training_sequences(groups);
  std::vector<std::size_t> all{0};
  REQUIRE((versions_present(sequences, all) == std::vector<version>{{4}, {3}}));
  std::vector<std::size_t> seen;
  auto sink = [&](std::size_t, std::size_t t, float) { seen.push_back(t); };
  scoring_options how{100};
  REQUIRE(score_version(network, version{4}, sequences, all, how, sink) == 5);
  REQUIRE(seen == std::vector<std::size_t>{4, 5});
  seen.clear();
  REQUIRE(score_version(network, version{3}, sequences, all, how, sink) == 3);
  REQUIRE(seen == std::vector<std::size_t>{2, 3});
  REQUIRE(score_version(network, version{5}, sequences, all, how, sink) == 0);
  REQUIRE(score_version(network, version{3}, sequences, all, how, sink,
                        [](std::size_t, std::size_t t) { return t == 2; }) == 2);
}

TEST_CASE("a store finds only exactly what was put in") {
  old_logit_store store;
  std::vector<std::int32_t> tokens{1, 2, 3, 4}, versions{-1, 5, 5, 6};
  old_logit_store::key key({7, 1}, tokens, versions);
  store.put(key, 1, -0.5F);
  store.put(key, 3, -0.25F);
  REQUIRE(store.find(key, 1) == -0.5F);
  REQUIRE(!store.find(key, 2));
  REQUIRE(store.find(key, 3) == -0.25F);
  auto sampled_anew = tokens;
  sampled_anew[2] = 9;
  old_logit_store::key other({7, 1}, sampled_anew, versions);
  REQUIRE(store.find(other, 1) == -0.5F);
  REQUIRE(!store.find(other, 3));
  auto by_another = versions;
  by_another[3] = 7;
  REQUIRE(!store.find({{7, 1}, tokens, by_another}, 3));
  REQUIRE(!store.find({{7, 2}, tokens, versions}, 3));
  REQUIRE(store.bytes() > 0);
  store.forget_below({6});
  REQUIRE(store.rollouts() == 1);
  store.forget_below({7});
  REQUIRE(store.rollouts() == 0);
  REQUIRE(store.bytes() == 0);
  store.put(key, 1, 0);
  store.forget({7, 1});
  REQUIRE(store.bytes() == 0);
}
