#include "runtime/model/worker_pool.hpp"

#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

using namespace millrace::model;

TEST_CASE("every index of a loop is done once, by whatever threads come") {
  for (const int threads : {1, 2, 3, 7}) {
    worker_pool pool(threads);
    for (const std::int64_t n : {0, 1, 2, 5, 64, 1000})
      for (const std::int64_t grain : {1, 3, 100})
        for (int round = 0; round < 30; ++round) {
          std::vector<std::atomic<int>> done(static_cast<std::size_t>(n));
          std::atomic<bool> inside = true;
          pool.split(n, grain, [&](std::int64_t first, std::int64_t last, int thread) {
            if (first < 0 || last > n || first >= last || thread < 0 || thread >= threads)
              inside = false;
            for (auto i = first; i < last; ++i)
              ++done[static_cast<std::size_t>(i)];
          });
          REQUIRE(inside);
          for (const auto& d : done)
            REQUIRE(d == 1);
        }
  }
}

TEST_CASE("loops that follow each other at once do not mix") {
  worker_pool pool(4);
  std::vector<std::int64_t> data(512, 0);
  for (std::int64_t round = 1; round <= 3000; ++round) {
    if (round % 500 == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(2)); // the workers fall asleep
    // A worker still at the loop before would be seen: each element must hold the last round.
    std::atomic<bool> in_order = true;
    pool.split(512, 1, [&](std::int64_t first, std::int64_t last, int) {
      for (auto i = first; i < last; ++i) {
        auto& x = data[static_cast<std::size_t>(i)];
        in_order = in_order && x == round - 1;
        x = round;
      }
    });
    REQUIRE(in_order);
  }
}

TEST_CASE("a worker that held the others up leaves its core alone, then comes back") {
  using clock = std::chrono::steady_clock;
  const auto busy = [](std::chrono::microseconds how_long) {
    for (const auto end = clock::now() + how_long; clock::now() < end;) {
    }
  };
  worker_pool pool(2);
  std::atomic<int> by_worker = 0;
  const auto loop = [&] {
    pool.split(64, 1, [&](std::int64_t, std::int64_t, int thread) {
      by_worker += thread;
      busy(std::chrono::microseconds(50));
    });
  };
  bool held_up = false;
  for (int round = 0; round < 1000 && !held_up; ++round)
    pool.split(64, 1, [&](std::int64_t, std::int64_t, int thread) {
      busy(std::chrono::microseconds(50));
      if (thread == 1 && !held_up) { // as if something else had its core
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        held_up = true;
      }
    });
  REQUIRE(held_up);
  const auto begin = clock::now();
  loop();
  if (clock::now() - begin < std::chrono::milliseconds(8)) // or this test was held up itself
    REQUIRE(by_worker == 0);
  by_worker = 0;
  for (int round = 0; round < 5000 && by_worker == 0; ++round)
    loop();
  REQUIRE(by_worker > 0);
}

TEST_CASE("a lent core's worker takes no part until it is given back") {
  worker_pool pool(2);
  std::atomic<int> by_worker = 0;
  const auto loop = [&] {
    pool.split(64, 1, [&](std::int64_t, std::int64_t, int thread) {
      by_worker += thread;
      for (const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
           std::chrono::steady_clock::now() < end;) {
      }
    });
  };
  {
    const worker_pool::lent_core core(pool);
    for (int round = 0; round < 20; ++round)
      loop();
    REQUIRE(by_worker == 0);
  }
  for (int round = 0; round < 5000 && by_worker == 0; ++round)
    loop();
  REQUIRE(by_worker > 0);
  const worker_pool::lent_core still(pool); // and it ends all the same
}
