#include "test/actors/simulated_stream.hpp"

#include <catch2/catch.hpp>

#include <cstdlib>

using namespace millrace;
using namespace millrace::simulation;

namespace {

/// More seeds for a longer search: MILLRACE_SEEDS=10000 actors_test "simulation: *"; and from
/// MILLRACE_FIRST_SEED on.
std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

} // namespace

TEST_CASE("simulation: without faults η = 0 is synchronous, and every rollout admitted is trained") {
  scenario s;
  s.eta = 0;
  s.faults = false;
  s.kills = 0;
  auto o = simulate(s);
  CHECK(o.steps == s.steps);
  CHECK(o.staleness_max == 0);
  CHECK(o.trained_rollouts == static_cast<std::size_t>(s.steps) * s.batch_size);
  CHECK(o.totals.count(rollout_state::trained) == s.steps * s.batch_size);
  CHECK(o.totals.count(rollout_state::dropped) == 0);
  CHECK(o.totals.count(rollout_state::failed) == 0);
}

TEST_CASE("simulation: with η above 0 the bound is used, and held") {
  scenario s;
  s.eta = 4;
  s.faults = false;
  s.kills = 0;
  s.steps = 30;
  auto o = simulate(s);
  CHECK(o.staleness_max > 0);
  CHECK(o.staleness_max <= 4);
}

TEST_CASE("simulation: a seed replays exactly") {
  for (std::uint64_t seed : {3, 14, 159}) {
    auto a = simulate(scenario::from_seed(seed));
    auto b = simulate(scenario::from_seed(seed));
    INFO("seed " << seed);
    CHECK(a.trace == b.trace);
    CHECK(a.events == b.events);
  }
}

TEST_CASE("simulation: no seed breaks a rule, and after the faults the stream goes on") {
  std::int64_t killed = 0, events = 0;
  auto first = from_environment("MILLRACE_FIRST_SEED", 0);
  auto count = from_environment("MILLRACE_SEEDS", 500);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    INFO("seed " << seed << " (replay: scenario::from_seed)");
    auto s = scenario::from_seed(seed);
    outcome o;
    REQUIRE_NOTHROW(o = simulate(s));
    REQUIRE(o.steps == s.steps);
    REQUIRE(o.staleness_max <= s.eta);
    killed += o.killed;
    events += o.events;
  }
  WARN(count << " seeds, " << events << " events, " << killed << " actors killed");
}
