#include "sync_simulation.hpp"

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::weightsync;

TEST_CASE("200 seeded fault simulations: never torn, never stuck, the next version gets through") {
  std::int64_t swaps = 0, deaths = 0, cuts = 0, bad = 0, lost = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    sync_simulation world(seed);
    world.run(60);
    world.stop_faults();
    world.run(90); // what was under way when the faults stopped has ended by now
    auto before = world.published();
    world.run(110);
    // New versions were published, and every receiver, revived and late ones too, has got some.
    REQUIRE(world.published() > before);
    REQUIRE(world.slowest_receiver() > before);
    // However receivers died, the trainer never waited longer than a lease lives.
    REQUIRE(world.longest_block() <= sync_simulation::lease_s + 0.01);
    swaps += world.swaps;
    deaths += world.deaths;
    cuts += world.cuts;
    bad += world.overwritten_reads;
    lost += world.lost;
  }
  // The faults did happen.
  REQUIRE(swaps > 5000);
  REQUIRE(deaths > 500);
  REQUIRE(cuts > 500);
  REQUIRE(bad > 500);
  REQUIRE(lost > 2000);
}
