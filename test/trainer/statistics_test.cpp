#include "trainer/statistics.hpp"

#include "runtime/metrics/catalogue.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

using namespace millrace;
using namespace millrace::trainer;

TEST_CASE("every number that a step writes is in the catalogue of metrics") {
  std::set<std::string> known;
  for (const auto* m : catalogue("trainer")) {
    if (!m->key.empty())
      known.insert(m->key);
    if (m->name == "millrace_step_stage_seconds")
      for (const auto& stage : m->label_values)
        known.insert(stage == "total" ? "step_s" : stage + "_s");
  }
  // Counters: the same by another name.
  for (const char* key : {"trained_tokens", "skipped_updates"})
    known.insert(key);
  step_statistics stats;
  // Shares of routes are gauges, and the counts behind them.
  for (auto route : names(old_logit_route{})) {
    stats.old_logits_served[std::string(route)] = 1;
    known.insert("old_logits_" + std::string(route));
  }
  for (auto route : {"loglinear", "arithmetic", "behaviour"}) // all tokens or none
    known.insert("old_logits_share_" + std::string(route));
  std::string missing;
  for (const auto& [key, value] : stats.values())
    if (!known.contains(key))
      missing += " " + key;
  INFO("not in runtime/metrics/catalogue.hpp:" << missing);
  REQUIRE(missing.empty());
}
