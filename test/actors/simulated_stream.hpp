#pragma once

#include "test/actors/fakes.hpp"
#include "test/actors/link.hpp"

#include "actors/controller_actor.hpp"
#include "runtime/config/settings.hpp"

#include <cstdint>
#include <string>

namespace millrace::simulation {

/// One seed drives all of this: latencies, message order, faults.
struct scenario {
  std::uint64_t seed = 0;
  std::int32_t eta = 1;
  std::int64_t batch_size = 8;
  std::int32_t group_size = 2;
  std::int64_t max_concurrent = 64;
  millrace::over_bound over_bound = millrace::over_bound::mask;
  bool filter_zero_variance = false;
  int generators = 2;
  int reward_workers = 2;
  std::int32_t steps = 10;
  bool faults = true;      ///< links lose and repeat messages, transfers are cut, actors are killed
  int kills = 3;
  std::int32_t faults_until_step = 6; ///< then all is well, and the rest must come in time
  double mean_length = 12;

  /// A random one.
  static scenario from_seed(std::uint64_t seed);
};

struct outcome {
  ledger_totals totals;
  std::int32_t steps = 0;
  std::size_t trained_rollouts = 0;
  std::int32_t staleness_max = 0;
  std::int64_t events = 0;
  double simulated_s = 0;
  int killed = 0;
  std::uint64_t trace = 0; ///< hash of all that happened, in order: equal runs have equal traces
};

/// Runs the real actors over fakes under CAF's testing scheduler until the last step is published.
/// Throws invariant_error when a rule is broken or the stream does not get there in time.
outcome simulate(const scenario& s);

} // namespace millrace::simulation
