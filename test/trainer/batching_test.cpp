#include "trainer/batching.hpp"

#include "runtime/error.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

using namespace millrace;
using namespace millrace::trainer;

namespace {

std::vector<std::size_t> flattened(const partition& parts) {
  std::vector<std::size_t> all;
  for (const auto& p : parts)
    all.insert(all.end(), p.begin(), p.end());
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<std::size_t> first(std::size_t n) {
  std::vector<std::size_t> all(n);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

std::int64_t weight(const std::vector<std::size_t>& part, const std::vector<std::int64_t>& w) {
  std::int64_t sum = 0;
  for (auto i : part)
    sum += w[i];
  return sum;
}

std::vector<std::int64_t> random_lengths(std::mt19937& rng, std::int64_t longest) {
  std::vector<std::int64_t> lengths(rng() % 60);
  for (auto& l : lengths) // long-tailed: mostly short
    l = 1 + static_cast<std::int64_t>(std::pow(double(rng() % 1000) / 1000, 4) * (longest - 1));
  return lengths;
}

rollout make_rollout(std::int64_t group, std::int32_t sample, std::int32_t prompt,
                     std::vector<std::int32_t> versions) {
  rollout r;
  r.id = {group, sample};
  r.prompt_length = prompt;
  for (std::int32_t i = 0; i < prompt; ++i)
    r.versions.push_back(-1);
  r.versions.insert(r.versions.end(), versions.begin(), versions.end());
  for (std::size_t i = 0; i < r.versions.size(); ++i) {
    r.tokens.push_back(static_cast<std::int32_t>(100 * group + 10 * sample + i));
    r.behaviour_logp.push_back(r.versions[i] < 0 ? 0.0F : -0.5F * i);
  }
  return r;
}

} // namespace

TEST_CASE("micro-batches hold every sequence once and never more than the budget") {
  for (auto rule : {micro_batch_packing::fewest_sequences, micro_batch_packing::karmarkar_karp})
    for (unsigned seed = 0; seed < 400; ++seed) {
      std::mt19937 rng{seed};
      auto lengths = random_lengths(rng, 100);
      std::int64_t budget = 100 + rng() % 400;
      std::size_t at_least = 1 + rng() % 5;
      INFO("seed " << seed << ", " << lengths.size() << " sequences, budget " << budget);
      auto parts = micro_batches(lengths, budget, rule, at_least);
      REQUIRE(flattened(parts) == first(lengths.size()));
      REQUIRE(parts.size() <= lengths.size());
      REQUIRE(parts.size() >= std::min(at_least, lengths.size()));
      for (const auto& p : parts) {
        REQUIRE(!p.empty());
        REQUIRE(std::is_sorted(p.begin(), p.end()));
        REQUIRE(weight(p, lengths) <= budget);
      }
      // Any two of AReaL's would not fit into one, or else the second had not been opened.
      if (rule == micro_batch_packing::fewest_sequences && at_least == 1)
        for (std::size_t a = 0; a < parts.size(); ++a)
          for (std::size_t b = a + 1; b < parts.size(); ++b)
            REQUIRE(weight(parts[a], lengths) + weight(parts[b], lengths) > budget);
      REQUIRE(parts == micro_batches(lengths, budget, rule, at_least));
    }
}

TEST_CASE("AReaL's rule on a worked case") {
  // 9 opens a, 8 opens b, 5 opens c; 4 fits b and c, one sequence each: b; 3 fits a and c: a;
  // 2 and 1 fit c only.
  auto parts = micro_batches(std::vector<std::int64_t>{1, 2, 3, 4, 5, 8, 9}, 12,
                             micro_batch_packing::fewest_sequences);
  REQUIRE(parts == partition{{2, 6}, {3, 5}, {0, 1, 4}});
}

TEST_CASE("differencing balances better than the greedy rule") {
  std::int64_t greedy = 0, balanced = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 rng{seed};
    std::vector<std::int64_t> lengths(64);
    for (auto& l : lengths)
      l = 1 + rng() % 100;
    auto heaviest = [&](const partition& parts) {
      std::int64_t most = 0;
      for (const auto& p : parts)
        most = std::max(most, weight(p, lengths));
      return most;
    };
    greedy += heaviest(micro_batches(lengths, 1000, micro_batch_packing::fewest_sequences));
    balanced += heaviest(micro_batches(lengths, 1000, micro_batch_packing::karmarkar_karp));
  }
  REQUIRE(balanced < greedy);
}

TEST_CASE("a sequence above the budget is the user's error and says what to set") {
  std::vector<std::int64_t> lengths{10, 300, 20};
  for (auto rule : {micro_batch_packing::fewest_sequences, micro_batch_packing::karmarkar_karp})
    REQUIRE_THROWS_WITH(micro_batches(lengths, 256, rule),
                        Catch::Contains("300 tokens") && Catch::Contains("256")
                          && Catch::Contains("trainer.micro_batch_tokens"));
  REQUIRE(micro_batches(lengths, 300, micro_batch_packing::fewest_sequences).size() == 2);
  REQUIRE(micro_batches({}, 1, micro_batch_packing::karmarkar_karp).empty());
}

TEST_CASE("balanced parts: all weights once, counts equal when asked, sums close") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 rng{seed};
    auto weights = random_lengths(rng, 1000);
    std::size_t k = 1 + rng() % 8;
    INFO("seed " << seed << ", " << weights.size() << " weights in " << k << " parts");
    for (bool equal : {false, true}) {
      auto parts = balanced_parts(weights, k, equal);
      REQUIRE(parts.size() == k);
      REQUIRE(flattened(parts) == first(weights.size()));
      if (equal) {
        auto [least, most] = std::minmax_element(
          parts.begin(), parts.end(), [](auto& a, auto& b) { return a.size() < b.size(); });
        REQUIRE(most->size() - least->size() <= 1);
      }
      std::int64_t lightest = INT64_MAX, heaviest = 0;
      for (const auto& p : parts) {
        lightest = std::min(lightest, weight(p, weights));
        heaviest = std::max(heaviest, weight(p, weights));
      }
      auto longest = weights.empty() ? 0 : *std::max_element(weights.begin(), weights.end());
      REQUIRE(heaviest - lightest <= longest);
    }
  }
}

TEST_CASE("packing: inputs, targets and boundaries") {
  std::vector<scored_group> groups(2);
  groups[0].rollouts = {make_rollout(0, 0, 2, {3, 4}), make_rollout(0, 1, 1, {4, -1, 5})};
  groups[1].rollouts = {make_rollout(1, 0, 3, {})};
  auto sequences = training_sequences(groups);
  REQUIRE(sequences.size() == 3);
  REQUIRE(sequences[1].sampled() == 2); // the token in the middle was a tool's
  REQUIRE(sequences[2].group == 1);

  auto p = pack(sequences, std::vector<std::size_t>{1, 0, 2});
  REQUIRE(p.tokens == std::vector<std::int64_t>{10, 11, 12, 0, 1, 2, 100, 101});
  REQUIRE(p.positions == std::vector<std::int64_t>{0, 1, 2, 0, 1, 2, 0, 1});
  REQUIRE(p.cu_seqlens == std::vector<std::int32_t>{0, 3, 6, 8});
  REQUIRE(p.rows == std::vector<std::int64_t>{0, 2, 4, 5});
  REQUIRE(p.targets == std::vector<std::int64_t>{11, 13, 2, 3});
  REQUIRE(p.versions == std::vector<std::int32_t>{4, 5, 3, 4});
  REQUIRE(p.behaviour_logp == std::vector<float>{-0.5F, -1.5F, -1.0F, -1.5F});
  REQUIRE(p.sampled_cu_seqlens == std::vector<std::int32_t>{0, 2, 4, 4});
}

TEST_CASE("a rollout whose arrays disagree is a bug, not a training example") {
  std::vector<scored_group> groups(1);
  groups[0].rollouts = {make_rollout(0, 0, 2, {3})};
  groups[0].rollouts[0].versions.pop_back();
  REQUIRE_THROWS_AS(training_sequences(groups), invariant_error);
  groups[0].rollouts = {make_rollout(0, 0, 0, {3})};
  REQUIRE_THROWS_AS(training_sequences(groups), invariant_error);
  groups[0].rollouts.clear();
  REQUIRE(training_sequences(groups).empty());
}

TEST_CASE("minibatches keep groups whole and are balanced") {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 rng{seed};
    std::vector<scored_group> groups(1 + rng() % 20);
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (std::int32_t s = 0; s < 4; ++s)
        groups[g].rollouts.push_back(
          make_rollout(g, s, 2, std::vector<std::int32_t>(1 + rng() % 30, 0)));
    auto sequences = training_sequences(groups);
    std::size_t count = 1 + rng() % 6;
    INFO("seed " << seed << ", " << groups.size() << " groups in " << count);
    auto parts = minibatches(sequences, count, seed);
    REQUIRE(parts.size() == std::min(count, groups.size()));
    REQUIRE(flattened(parts) == first(sequences.size()));
    for (const auto& p : parts) {
      REQUIRE(!p.empty());
      REQUIRE(p.size() % 4 == 0);
      for (std::size_t i = 0; i < p.size(); ++i)
        REQUIRE(sequences[p[i]].group == sequences[p[i - i % 4]].group);
    }
    REQUIRE(parts == minibatches(sequences, count, seed));
    if (count == 2 && groups.size() >= 12) { // balanced in tokens, and another split each time
      auto tokens = [&](const std::vector<std::size_t>& part) {
        double sum = 0;
        for (auto i : part)
          sum += static_cast<double>(sequences[i].tokens.size());
        return sum;
      };
      if (groups.size() % 2 == 0)
        REQUIRE(tokens(parts[0]) / tokens(parts[1]) == Approx(1).margin(0.1));
      REQUIRE(parts != minibatches(sequences, count, seed + 1));
    }
  }
  REQUIRE(minibatches({}, 3, 0).empty());
}

TEST_CASE("packing with shared prompts holds the same tokens, fewer times") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    std::mt19937 rng{seed};
    std::vector<scored_group> groups(1 + rng() % 4);
    std::int64_t id = 0;
    for (auto& g : groups) {
      std::vector<std::int32_t> prompt(1 + rng() % 5);
      for (auto& t : prompt)
        t = static_cast<std::int32_t>(rng() % 3);
      for (int i = 0, n = 1 + static_cast<int>(rng() % 4); i < n; ++i) {
        std::vector<std::int32_t> versions(rng() % 5);
        for (auto& v : versions)
          v = static_cast<std::int32_t>(rng() % 3) - 1;
        auto r = make_rollout(id, i, static_cast<std::int32_t>(prompt.size()), versions);
        for (std::size_t j = 0; j < r.tokens.size(); ++j)
          r.tokens[j] = j < prompt.size() ? prompt[j] : static_cast<std::int32_t>(rng() % 2);
        g.rollouts.push_back(std::move(r));
      }
      ++id;
    }
    auto sequences = training_sequences(groups);
    auto which = first(sequences.size());
    auto apart = pack(sequences, which), shared = pack(sequences, which, true);
    REQUIRE(apart.prefixes.empty());
    REQUIRE(shared.targets == apart.targets);
    REQUIRE(shared.versions == apart.versions);
    REQUIRE(shared.behaviour_logp == apart.behaviour_logp);
    REQUIRE(shared.sampled_cu_seqlens == apart.sampled_cu_seqlens);
    std::int64_t expected = 0;
    for (const auto& run : sibling_runs(sequences, which))
      expected += run.packed_tokens;
    REQUIRE(static_cast<std::int64_t>(shared.tokens.size()) == expected);
    // What a row has read: its segment up to itself, after all of the prefix.
    auto history = [](const packed_sequences& p, std::int64_t row) {
      std::vector<std::int64_t> read;
      auto s = static_cast<std::size_t>(
        std::upper_bound(p.cu_seqlens.begin(), p.cu_seqlens.end(), row) - p.cu_seqlens.begin() - 1);
      if (!p.prefixes.empty() && p.prefixes[s] >= 0) {
        auto q = static_cast<std::size_t>(p.prefixes[s]);
        read.assign(p.tokens.begin() + p.cu_seqlens[q], p.tokens.begin() + p.cu_seqlens[q + 1]);
      }
      read.insert(read.end(), p.tokens.begin() + p.cu_seqlens[s], p.tokens.begin() + row + 1);
      REQUIRE(p.positions[static_cast<std::size_t>(row)]
              == static_cast<std::int64_t>(read.size()) - 1);
      return read;
    };
    for (std::size_t i = 0; i < apart.rows.size(); ++i)
      REQUIRE(history(shared, shared.rows[i]) == history(apart, apart.rows[i]));

    std::int64_t budget = 9 + static_cast<std::int64_t>(rng() % 20);
    auto units = units_of(sequences, which, budget);
    REQUIRE(flattened(units.members) == which);
    for (std::size_t u = 0; u < units.members.size(); ++u) {
      REQUIRE(units.lengths[u] <= budget);
      REQUIRE(static_cast<std::int64_t>(pack(sequences, units.members[u], true).tokens.size())
              <= units.lengths[u]);
    }
  }
}
