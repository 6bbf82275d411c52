// Ranks as threads of this process, over real Gloo connections.

#include "trainer/rank_watch.hpp"

#include "runtime/error.hpp"
#include "test/patience.hpp"
#include "test/trainer/rank_threads.hpp"
#include "test/trainer/toy.hpp"
#include "trainer/adamw.hpp"
#include "trainer/c10d_backends.hpp"
#include "trainer/collectives.hpp"
#include "trainer/parallel.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <catch2/catch.hpp>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

using namespace millrace;
using namespace millrace::trainer;
using namespace millrace::toy;

namespace {

constexpr auto timeout = 5 * test::patience;

struct watched_ranks {
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  std::vector<c10::intrusive_ptr<c10d::Backend>> backends;
  std::vector<std::unique_ptr<rank_watch>> watches;
  std::atomic<int> losses = 0;

  /// All but `silent` watch.
  watched_ranks(int n, int silent = -1)
      : backends(static_cast<std::size_t>(n)), watches(static_cast<std::size_t>(n)) {
    on_threads(n, [&](int r) {
      const auto i = static_cast<std::size_t>(r);
      backends[i] = gloo_backend(store, r, n, timeout, true);
      if (r != silent)
        watches[i] = std::make_unique<rank_watch>(backends[i], r, n, [this] { ++losses; });
    });
  }
};

} // namespace

TEST_CASE("a watch tells every rank of one that is gone, within a moment") {
  for (int gone : {0, 1, 2}) {
    INFO("rank " << gone);
    watched_ranks ranks(3, gone);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    REQUIRE(ranks.losses == 0);
    ranks.backends[static_cast<std::size_t>(gone)].reset(); // closes its connections, without a word
    REQUIRE(test::comes_true([&] { return ranks.losses == 2; }));
  }
}

TEST_CASE("watches that end in good order tell of nothing, whoever ends first") {
  for (auto order : {std::array{0, 1, 2}, std::array{2, 1, 0}, std::array{1, 0, 2}}) {
    watched_ranks ranks(3);
    for (auto r : order) {
      ranks.watches[static_cast<std::size_t>(r)].reset();
      ranks.backends[static_cast<std::size_t>(r)].reset();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    REQUIRE(ranks.losses == 0);
  }
}

TEST_CASE("c10d's flight recorder is off: groups on several threads corrupt it") {
  REQUIRE(std::getenv("TORCH_FR_BUFFER_SIZE") == std::string("0"));
}

TEST_CASE("groups that were abandoned throw rank_lost at their next operation") {
  auto meeting = rendezvous::host(0, timeout);
  auto group = meeting->group("alone", 0, 1);
  group->barrier();
  group->check();
  group->abandon();
  REQUIRE_THROWS_AS(group->check(), rank_lost);
  REQUIRE_THROWS_AS(group->barrier(), rank_lost);
  auto local = local_collectives(2);
  local[0]->check();
  local[1]->abandon();
  REQUIRE_THROWS_AS(local[0]->check(), rank_lost);
  REQUIRE_THROWS_AS(local[0]->barrier(), rank_lost);
}

TEST_CASE("a watch survives what is called when a rank is lost") {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<c10::intrusive_ptr<c10d::Backend>> backends(2);
  std::unique_ptr<rank_watch> watch;
  std::atomic<int> told = 0;
  on_threads(2, [&](int r) {
    backends[static_cast<std::size_t>(r)] = gloo_backend(store, r, 2, timeout, true);
    if (r == 0)
      watch = std::make_unique<rank_watch>(backends[0], 0, 2, [&] {
        ++told;
        throw std::runtime_error("it can't be broken off");
      });
  });
  backends[1].reset();
  REQUIRE(test::comes_true([&] { return told == 1; }));
}

TEST_CASE("results are agreed on by all ranks, or rank_lost is thrown") {
  const rank_grid grid{.dp = 2, .tp = 1};
  for (bool dies : {false, true}) {
    auto meeting = rendezvous::host(0, timeout);
    const auto port = meeting->port();
    std::atomic<int> agreed = 0, lost = 0;
    on_threads(2, [&](int r) {
      auto mesh = r == 0 ? rank_mesh::lead(grid, std::move(meeting), nullptr)
                         : rank_mesh::join(r, rendezvous::join("127.0.0.1", port, timeout));
      if (dies && r == 1)
        return;
      try {
        mesh->agree_on_results();
        ++agreed;
        if (r == 1)
          ensure(mesh->next().what == "end", "rank 0 ends");
      } catch (const rank_lost&) {
        ++lost;
      }
    });
    REQUIRE(agreed == (dies ? 0 : 2));
    REQUIRE(lost == (dies ? 1 : 0));
  }
}

TEST_CASE("zero1 with an offloaded optimiser: the same bits as without") {
  const rank_grid grid{.dp = 2, .tp = 1};
  std::vector<float> results[2];
  for (bool offload : {false, true}) {
    auto meeting = rendezvous::host(0, timeout);
    const auto port = meeting->port();
    on_threads(grid.ranks(), [&](int r) {
      auto mesh = r == 0 ? rank_mesh::lead(grid, std::move(meeting), nullptr)
                         : rank_mesh::join(r, rendezvous::join("127.0.0.1", port, timeout));
      auto network = tiny_network();
      adamw optimizer(network, {.weight_decay = 0.1, .offload = offload}, mesh.get(), true);
      for (int i = 0; i < 3; ++i) {
        network.flat_gradient().copy_(at::arange(network.flat().numel(), at::kFloat).sin() * (1 + i));
        optimizer.step(1e-2);
        optimizer.gather_state();
        optimizer.scatter_state();
      }
      ensure(optimizer.offloaded_bytes() <= (offload ? 8 * network.flat().numel() + 16 : 0),
             "a rank offloads its own part");
      mesh->world().barrier();
      if (r == 0)
        results[offload ? 1 : 0] = parameters(network.views());
      mesh->world().barrier();
    });
  }
  REQUIRE(!results[0].empty());
  REQUIRE(same_bits(results[0], results[1]));
}
