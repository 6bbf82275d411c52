// Real processes over UCX and sockets, killed and stopped in the middle of transfers.
#include "sync_processes.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

using namespace millrace;
using namespace millrace::weightsync;

namespace {

constexpr double pull_timeout_s = 0.5;

// Long enough for any honest pull on a busy machine.
constexpr double patience_s = 20;

carriage options(std::uint64_t seed) { return static_cast<carriage>(seed % 3); }

void sleep_s(double s) { std::this_thread::sleep_for(std::chrono::duration<double>(s)); }

// Publishes as a trainer does: when readers hold every slot, again after their leases' end.
manifest publish(trainer_process& trainer, std::int32_t v) {
  for (int i = 0; i < 50; ++i) {
    if (auto m = trainer.publish(v))
      return *m;
    sleep_s(0.1);
  }
  FAIL("version " << v << " could not be published");
  return {};
}

void gets(generator_process& g, trainer_process& t, const manifest& m, const std::string& name) {
  auto lease = t.acquire(name, m.number.value);
  REQUIRE(lease);
  REQUIRE(lease->substr(0, 7) == "granted");
  g.pull(m, patience_s);
  auto result = g.result(patience_s + 5);
  REQUIRE(result);
  REQUIRE(*result == "ready");
  t.release(*lease);
}

bool honest(const std::optional<std::string>& result) {
  return result && (*result == "ready" || result->substr(0, 6) == "failed");
}

void generator_dies(std::uint64_t seed, int signal_number) {
  std::mt19937_64 random(seed);
  trainer_process trainer(options(seed));
  generator_process victim(options(seed));
  generator_process other(options(seed));
  auto m = publish(trainer, 0);
  gets(victim, trainer, m, "victim");
  gets(other, trainer, m, "other");
  m = publish(trainer, 1);
  REQUIRE(trainer.acquire("victim", 1));
  victim.pull(m, pull_timeout_s);
  sleep_s(std::uniform_real_distribution(0.0, 0.03)(random));
  victim.process().signal(signal_number);
  gets(other, trainer, m, "other");
  // Both slots are written again, the victim's too, once its lease has ended.
  for (std::int32_t v = 2; v < 4; ++v)
    gets(other, trainer, publish(trainer, v), "other");
  if (signal_number != SIGSTOP)
    return;
  victim.process().signal(SIGCONT);
  REQUIRE(honest(victim.result(patience_s)));
  gets(victim, trainer, publish(trainer, 4), "victim");
}

void trainer_dies(std::uint64_t seed, int signal_number) {
  std::mt19937_64 random(seed);
  auto trainer = std::make_unique<trainer_process>(options(seed));
  generator_process generator(options(seed));
  gets(generator, *trainer, publish(*trainer, 0), "g");
  auto m = publish(*trainer, 1);
  REQUIRE(trainer->acquire("g", 1));
  generator.pull(m, pull_timeout_s);
  sleep_s(std::uniform_real_distribution(0.0, 0.03)(random));
  trainer->process().signal(signal_number);
  REQUIRE(honest(generator.result(test::patience_s)));
  if (signal_number == SIGSTOP)
    trainer->process().signal(SIGCONT);
  else
    trainer = std::make_unique<trainer_process>(options(seed));
  gets(generator, *trainer, publish(*trainer, 2), "g");
}

} // namespace

TEST_CASE("generators killed or stopped in a transfer cost nobody else anything") {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    INFO("seed " << seed);
    generator_dies(seed, SIGKILL);
    generator_dies(seed, SIGSTOP);
  }
}

TEST_CASE("trainers killed or stopped in a transfer never leave a torn version") {
  for (std::uint64_t seed = 10; seed < 15; ++seed) {
    INFO("seed " << seed);
    trainer_dies(seed, SIGKILL);
    trainer_dies(seed, SIGSTOP);
  }
}
