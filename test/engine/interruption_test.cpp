#include "interrupted_run.hpp"

#include "runtime/error.hpp"

#include <catch2/catch.hpp>

#include <thread>

using namespace millrace;
using namespace millrace::generation;
using namespace millrace::test;

namespace {

const engine_options plain{.max_batch = 8, .stop_tokens = {2}};

/// Runs the tasks, with a new version after each `every` steps.
results interrupted(const std::vector<generation_task>& tasks, engine_options options, int every,
                    std::vector<swap_report>* reports = nullptr) {
  auto e = engine_at(0, options);
  for (const auto& t : tasks)
    e->submit(t);
  return run_out_with(*e, every, [&] {
    const auto report = update_to(*e, e->current().value + 1);
    if (reports)
      reports->push_back(report);
  });
}

std::vector<generation_task> tasks() {
  std::vector<generation_task> all;
  for (std::int64_t prompt = 0; prompt < 6; ++prompt)
    for (std::int32_t sample = 0; sample < 3; ++sample)
      all.push_back(task_for(prompt, sample, 40));
  return all;
}

} // namespace

TEST_CASE("each token carries the version that was current when it was sampled") {
  auto e = engine_at(3, plain);
  auto t = task_for(1, 0, 12);
  t.sampling.ignore_eos = true;
  e->submit(t);
  std::vector<std::int32_t> expected(static_cast<std::size_t>(t.so_far.prompt_length), -1);
  for (int i = 0; i < 12; ++i) {
    if (i == 4)
      REQUIRE(update_to(*e, 4).running == 1);
    if (i == 5)
      update_to(*e, 7);
    expected.push_back(i < 4 ? 3 : i < 5 ? 4 : 7);
    const auto done = e->step();
    REQUIRE(done.size() == (i == 11 ? 1 : 0));
    if (i == 11)
      REQUIRE(done[0].versions == expected);
  }
}

TEST_CASE("versions only grow") {
  auto e = engine_at(3, plain);
  REQUIRE_THROWS_AS(e->install({3}), invariant_error);
  REQUIRE_THROWS_AS(e->install({2}), invariant_error);
  REQUIRE(e->current() == version{3});
}

TEST_CASE("recomputing under the same weights changes nothing") {
  // Version 1 has the weights of version 0, so interrupted and undisturbed runs must agree.
  auto undisturbed = engine_at(0, plain);
  for (const auto& t : tasks())
    undisturbed->submit(t);
  results expected;
  run_out(*undisturbed, expected);
  for (const auto kv : {kv_policy::recompute, kv_policy::keep})
    for (const bool share : {true, false}) {
      auto options = plain;
      options.kv = kv;
      options.share_prefixes = share;
      options.prefill_tokens = 23;
      auto e = engine_at(0, options);
      for (const auto& t : tasks())
        e->submit(t);
      const auto got = run_out_with(*e, 3, [&] {
        fill(e->staging(), engine_config(), 0);
        e->install(e->current().next());
      });
      for (const auto& [id, r] : expected) {
        REQUIRE(got.at(id).tokens == r.tokens);
        REQUIRE(same_log_probs(got.at(id), r));
      }
    }
}

TEST_CASE("interrupted answers do not depend on batching either") {
  // Swaps come at a given token of each sequence when each runs alone, so compare engines of
  // different shape that step in lockstep.
  auto small_cache = plain;
  small_cache.share_prefixes = false;
  std::vector<generation_task> all;
  for (std::int64_t prompt = 0; prompt < 8; ++prompt)
    all.push_back(task_for(prompt, 0, 30));
  const auto together = interrupted(all, plain, 4);
  const auto unshared = interrupted(all, small_cache, 4);
  for (const auto& t : all) {
    const auto alone = interrupted({t}, plain, 4);
    REQUIRE(same(alone.at(t.so_far.id), together.at(t.so_far.id)));
    REQUIRE(same(alone.at(t.so_far.id), unshared.at(t.so_far.id)));
  }
}

TEST_CASE("the report of a swap counts what was done") {
  for (const auto kv : {kv_policy::recompute, kv_policy::keep}) {
    auto options = plain;
    options.kv = kv;
    double now = 100;
    options.clock = [&] { return now += 0.5; };
    auto e = engine_at(0, options);
    for (std::int32_t sample = 0; sample < 4; ++sample) {
      auto t = task_for(2, sample, 20, 33);
      t.sampling.ignore_eos = true;
      e->submit(t);
    }
    e->step();
    e->step();
    const auto r = update_to(*e, 5);
    REQUIRE(r.from == version{0});
    REQUIRE(r.to == version{5});
    REQUIRE(r.running == 4);
    REQUIRE(r.bytes > 0);
    REQUIRE(r.pause_s > 0);
    REQUIRE(r.prefill_s <= r.pause_s);
    // 34 tokens are cached for each: two shared blocks of 16 and two tokens of one's own.
    REQUIRE(r.reprefilled_tokens == (kv == kv_policy::recompute ? 32 + 4 * 2 : 0));
  }
}

TEST_CASE("prefixes of an older version are not reused") {
  for (const auto kv : {kv_policy::recompute, kv_policy::keep}) {
    auto options = plain;
    options.kv = kv;
    auto e = engine_at(0, options);
    e->submit(task_for(1, 0, 30, 40));
    e->step();
    update_to(*e, 1);
    e->submit(task_for(1, 1, 30, 40));
    results got;
    run_out(*e, got);
    auto fresh = engine_at(1, options);
    fresh->submit(task_for(1, 1, 30, 40));
    results expected;
    run_out(*fresh, expected);
    REQUIRE(same(got.at({1, 1}), expected.at({1, 1})));
  }
}

TEST_CASE("weights are prepared beside decoding") {
  const auto config = engine_config();
  auto e = engine_at(0, plain);
  for (const auto& t : tasks())
    e->submit(t);
  results got;
  for (std::int32_t v = 1; e->running() + e->waiting() > 0; ++v) {
    std::thread receiver([&] {
      fill(e->staging(), config, static_cast<std::uint64_t>(v));
      e->prepare();
    });
    for (auto& r : e->step())
      got.emplace(r.id, std::move(r));
    receiver.join();
    e->install({v});
  }
  const auto expected = interrupted(tasks(), plain, 1);
  REQUIRE(got.size() == expected.size());
  for (const auto& [id, r] : expected)
    REQUIRE(same(got.at(id), r));
}
