#pragma once

#include "bench/benchmarks.hpp"
#include "runtime/config/settings.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace millrace::bench {

/// The quickstart's task with batches of 512, up to 8 versions stale and sampled from int8 weights: what
/// corrections are compared on. 800 steps, with `--quick` 5.
settings stale_task(std::uint64_t seed, const options& how);

/// One of those that are compared, and what its run differs by.
struct contender {
  std::string name;
  std::function<void(settings&)> choose;
};

struct finished_run {
  double accuracy = 0;               ///< held-out, after the last step
  std::vector<nlohmann::json> lines; ///< of metrics.jsonl
};

/// Trains in a folder that is gone afterwards.
finished_run train_run(const settings& s);

} // namespace millrace::bench
