#include "rollout/sampler.hpp"
#include "runtime/error.hpp"
#include "runtime/random.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

using namespace millrace;
using namespace millrace::generation;

namespace {

std::vector<float> some_logits(std::uint64_t seed, std::size_t n) {
  random_stream draws(seed);
  std::vector<float> x;
  for (std::size_t i = 0; i < n; ++i)
    x.push_back(2 * draws.normal());
  return x;
}

/// The distribution by its definition.
std::vector<double> expected(const std::vector<float>& logits, const sampling_params& p,
                             const std::vector<std::int32_t>& forbidden = {}) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return logits[a] > logits[b]; });
  std::vector<double> w(logits.size(), 0);
  const auto allowed = [&](std::size_t i) {
    return std::find(forbidden.begin(), forbidden.end(), static_cast<std::int32_t>(i))
           == forbidden.end();
  };
  std::erase_if(order, [&](auto i) { return !allowed(i); });
  for (const auto i : order)
    w[i] = std::exp((static_cast<double>(logits[i]) - logits[order[0]]) / p.temperature);
  const auto cut_after = [&](std::size_t n) {
    for (std::size_t i = n; i < order.size(); ++i)
      w[order[i]] = 0;
    order.resize(std::min(n, order.size()));
  };
  std::size_t n = 0;
  while (n < order.size() && w[order[n]] >= p.min_p)
    ++n;
  cut_after(std::max<std::size_t>(n, 1));
  if (p.top_k > 0)
    cut_after(static_cast<std::size_t>(p.top_k));
  double total = std::accumulate(w.begin(), w.end(), 0.0), sum = 0;
  if (p.top_p < 1) {
    for (n = 0; n < order.size() && (n == 0 || sum < p.top_p * total);)
      sum += w[order[n++]];
    cut_after(n);
    total = sum;
  }
  for (auto& x : w)
    x /= total;
  return w;
}

/// Every way of cutting, alone and together.
std::vector<sampling_params> distributions() {
  std::vector<sampling_params> all{{}};
  all.push_back({.temperature = 0.7F});
  all.push_back({.temperature = 1.5F, .top_k = 5});
  all.push_back({.top_p = 0.8F});
  all.push_back({.min_p = 0.1F});
  all.push_back({.temperature = 0.9F, .top_p = 0.9F, .min_p = 0.02F, .top_k = 12});
  return all;
}

} // namespace

TEST_CASE("the likeliest tokens are those of the distribution sampled from") {
  auto all = distributions();
  all.push_back({.temperature = 1e-3F});
  const std::vector<std::int32_t> forbidden{3, 4};
  sampler s;
  random_stream draws(21);
  for (std::size_t which = 0; which < all.size(); ++which)
    for (const bool forbid : {false, true})
      for (const std::size_t n : {1, 3, 20, 40}) {
        const auto& p = all[which];
        auto logits = some_logits(which + 30 * n, 33);
        logits[7] = logits[20]; // a tie
        const auto q = expected(logits, p, forbid ? forbidden : std::vector<std::int32_t>{});
        const auto drawn = s.sample(logits, p, draws.uniform(),
                                    forbid ? std::span<const std::int32_t>(forbidden)
                                           : std::span<const std::int32_t>());
        const auto found = s.likeliest(logits, p, drawn, n);
        INFO("sampling " << which << ", forbid " << forbid << ", n " << n);
        std::vector<std::int32_t> order;
        for (std::int32_t t = 0; t < 33; ++t)
          if (q[static_cast<std::size_t>(t)] > 1e-45)
            order.push_back(t);
        std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
          return q[static_cast<std::size_t>(a)] > q[static_cast<std::size_t>(b)];
        });
        REQUIRE(found.size() == std::min(n, order.size()));
        for (std::size_t i = 0; i < found.size(); ++i) {
          REQUIRE(found[i].token == order[i]);
          REQUIRE(std::abs(found[i].logp - std::log(q[static_cast<std::size_t>(order[i])])) < 1e-3);
          REQUIRE(found[i].logp <= 0);
          if (found[i].token == drawn.token)
            REQUIRE(found[i].logp == drawn.logp);
        }
      }
  auto logits = some_logits(3, 33);
  const auto greedy = s.sample(logits, {.temperature = 0}, 0.3);
  const auto only = s.likeliest(logits, {.temperature = 0}, greedy, 5);
  REQUIRE(only.size() == 1);
  REQUIRE(only[0].token == greedy.token);
  REQUIRE(only[0].logp == 0);
  REQUIRE(s.likeliest(logits, {.temperature = 0}, greedy, 0).empty());
}

TEST_CASE("tokens come with the frequencies of their distribution, and its log-prob") {
  const auto all = distributions();
  const std::vector<std::int32_t> forbidden{3, 4};
  sampler s;
  for (std::size_t which = 0; which < all.size(); ++which)
    for (const bool forbid : {false, true}) {
      const auto& p = all[which];
      const auto logits = some_logits(which + 1, 33);
      const auto q = expected(logits, p, forbid ? forbidden : std::vector<std::int32_t>{});
      constexpr int n = 40000;
      std::vector<int> counts(33, 0);
      const double log_all = std::log(std::accumulate(
        logits.begin(), logits.end(), 0.0,
        [](double a, float x) { return a + std::exp(static_cast<double>(x)); }));
      for (int i = 0; i < n; ++i) {
        auto copy = logits;
        const auto drawn = s.sample(copy, p, sampling_draw(9, static_cast<std::int64_t>(which), 0, i),
                                    forbid ? std::span<const std::int32_t>(forbidden)
                                           : std::span<const std::int32_t>());
        const auto t = static_cast<std::size_t>(drawn.token);
        ++counts[t];
        REQUIRE(std::abs(drawn.logp - std::log(q[t])) < 2e-5);
        REQUIRE(std::abs(drawn.raw_logp - (logits[t] - log_all)) < 2e-5);
      }
      double chi = 0;
      int cells = 0;
      for (std::size_t t = 0; t < q.size(); ++t) {
        if (q[t] == 0)
          REQUIRE(counts[t] == 0);
        if (q[t] * n < 5)
          continue;
        chi += (counts[t] - q[t] * n) * (counts[t] - q[t] * n) / (q[t] * n);
        ++cells;
      }
      INFO("parameters " << which << ", forbidden " << forbid << ": chi² " << chi << " in " << cells);
      REQUIRE(chi < cells + 4 * std::sqrt(2.0 * cells) + 4);
    }
}

TEST_CASE("greedy takes the first of the likeliest and is certain of it") {
  sampler s;
  std::vector<float> logits{1, 3, 3, 2};
  const auto drawn = s.sample(logits, {.temperature = 0}, 0.99);
  REQUIRE(drawn.token == 1);
  REQUIRE(drawn.logp == 0);
  const std::vector<std::int32_t> forbidden{1, 2};
  REQUIRE(s.sample(logits, {.temperature = 0}, 0.99, forbidden).token == 3);
}

TEST_CASE("the ends of the draw give tokens of positive probability") {
  sampler s;
  for (const std::size_t n : {1, 2, 16, 17, 1024, 1025, 5000})
    for (const double draw : {0.0, 0.5, 1 - 0x1p-53}) {
      auto logits = some_logits(n, n);
      for (std::size_t i = 0; i < n; i += 3)
        if (n > 3)
          logits[i] = -1e4F; // weight exactly 0
      const auto t = s.sample(logits, {}, draw).token;
      REQUIRE(t >= 0);
      REQUIRE(t < static_cast<std::int32_t>(n));
      REQUIRE((n <= 3 || t % 3 != 0));
    }
}

TEST_CASE("large vocabularies are searched like small ones") {
  sampler s;
  const auto logits = some_logits(4, 5000);
  const auto q = expected(logits, {});
  for (int i = 0; i < 300; ++i) {
    const auto draw = sampling_draw(1, 0, 0, i);
    auto copy = logits;
    const auto t = static_cast<std::size_t>(s.sample(copy, {}, draw).token);
    double below = 0;
    for (std::size_t j = 0; j < t; ++j)
      below += q[j];
    REQUIRE(draw > below - 1e-5);
    REQUIRE(draw < below + q[t] + 1e-5);
  }
}

TEST_CASE("what cannot be sampled from is an error") {
  sampler s;
  std::vector<float> logits{1, std::numeric_limits<float>::quiet_NaN()};
  REQUIRE_THROWS_AS(s.sample(logits, {}, 0.5), user_error);
  logits = {1, std::numeric_limits<float>::infinity()};
  REQUIRE_THROWS_AS(s.sample(logits, {}, 0.5), user_error);
  logits = {1, 2};
  const std::vector<std::int32_t> all{0, 1};
  REQUIRE_THROWS_AS(s.sample(logits, {}, 0.5, all), user_error);
}
