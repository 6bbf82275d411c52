#include "engine_fixture.hpp"

#include "runtime/error.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>

using namespace millrace;
using namespace millrace::generation;
using namespace millrace::test;

namespace {

const engine_options plain{.max_batch = 16, .stop_tokens = {2}};

/// Each task alone in an engine of its own.
results one_by_one(const std::vector<generation_task>& tasks, engine_options options = plain) {
  results all;
  options.max_batch = 1;
  for (const auto& t : tasks) {
    auto e = engine_at(0, options);
    e->submit(t);
    run_out(*e, all);
  }
  return all;
}

std::vector<generation_task> mixed_tasks() {
  std::vector<generation_task> tasks;
  for (std::int64_t prompt = 0; prompt < 12; ++prompt)
    for (std::int32_t sample = 0; sample < 3; ++sample) {
      auto t = task_for(prompt, sample, 5 + static_cast<std::int32_t>(prompt * 3));
      if (prompt % 3 == 1)
        t.sampling.temperature = 0.7F;
      if (prompt % 3 == 2)
        t.sampling.top_k = 8;
      tasks.push_back(std::move(t));
    }
  return tasks;
}

std::string error_of(engine& e, generation_task t) {
  try {
    e.submit(std::move(t));
  } catch (const user_error& error) {
    return error.what();
  }
  return "";
}

} // namespace

TEST_CASE("a rollout is bitwise the same whatever it is batched with") {
  const auto tasks = mixed_tasks();
  const auto expected = one_by_one(tasks);
  REQUIRE(expected.size() == tasks.size());
  struct variant {
    std::int32_t batch, prefill;
    std::int64_t cache;
    bool share;
    std::int32_t threads;
  };
  // 144 tokens of cache hold one and a half sequences: preemption all the time.
  for (const auto& v : {variant{16, 512, 0, true, 1}, {5, 512, 0, false, 1}, {36, 7, 0, true, 1},
                        {36, 1, 0, true, 1}, {16, 64, 144, true, 1}, {16, 64, 400, false, 1},
                        {36, 512, 0, true, 3}}) {
    auto options = plain;
    options.max_batch = v.batch;
    options.prefill_tokens = v.prefill;
    options.kv_cache_tokens = v.cache;
    options.share_prefixes = v.share;
    options.threads = v.threads;
    auto e = engine_at(0, options);
    for (const auto& t : tasks)
      e->submit(t);
    results got;
    run_out(*e, got);
    INFO("batch " << v.batch << ", prefill " << v.prefill << ", cache " << v.cache);
    for (const auto& [id, r] : expected) {
      INFO(to_string(id));
      REQUIRE(same(got.at(id), r));
    }
    const auto count = e->statistics();
    REQUIRE(count.kv_blocks_free == count.kv_blocks);
    REQUIRE((v.cache == 0) == (count.preemptions == 0));
    REQUIRE(v.share == (count.reused_tokens > 0));
  }
}

TEST_CASE("order of submission and waves of arrival change nothing") {
  auto tasks = mixed_tasks();
  const auto expected = one_by_one(tasks);
  random_stream draws(3);
  for (std::size_t i = tasks.size(); i > 1; --i)
    std::swap(tasks[i - 1], tasks[draws.below(i)]);
  auto e = engine_at(0, plain);
  results got;
  for (const auto& t : tasks) {
    e->submit(t);
    for (auto n = draws.below(4); n > 0; --n)
      for (auto& r : e->step())
        got.emplace(r.id, std::move(r));
  }
  run_out(*e, got);
  for (const auto& [id, r] : expected)
    REQUIRE(same(got.at(id), r));
}

TEST_CASE("a prompt is computed once for its samples") {
  auto e = engine_at(0, plain);
  for (std::int32_t sample = 0; sample < 8; ++sample)
    e->submit(task_for(1, sample, 4, 38));
  e->step();
  REQUIRE(e->statistics().prefilled_tokens == 37);
  REQUIRE(e->statistics().reused_tokens == 7 * 37);
  REQUIRE(e->statistics().sampled_tokens == 8);
}

TEST_CASE("answers end where they should") {
  auto e = engine_at(0, plain);
  results got;
  for (std::int64_t i = 0; i < 60; ++i)
    e->submit(task_for(i, 0, 1 + static_cast<std::int32_t>(i % 20)));
  run_out(*e, got);
  int stopped = 0;
  for (const auto& [id, r] : got) {
    const auto most = 1 + static_cast<std::int32_t>(id.group % 20);
    REQUIRE(r.generated() >= 1);
    REQUIRE(r.generated() <= most);
    const auto stops = std::count(r.tokens.begin() + r.prompt_length, r.tokens.end(), 2);
    if (r.finish == finish_reason::stop) {
      ++stopped;
      REQUIRE(stops == 1);
      REQUIRE(r.tokens.back() == 2);
    } else {
      REQUIRE(r.finish == finish_reason::length);
      REQUIRE(r.generated() == most);
      REQUIRE(stops == 0);
    }
    REQUIRE(r.finished_at >= r.started_at);
  }
  REQUIRE(stopped > 0);
}

TEST_CASE("min_tokens, ignore_eos and the context's end") {
  auto e = engine_at(0, plain);
  for (std::int64_t i = 0; i < 40; ++i) {
    auto t = task_for(i, 0, 20);
    t.sampling.min_tokens = 10;
    e->submit(t);
    t = task_for(i, 1, 20);
    t.sampling.ignore_eos = true;
    e->submit(t);
    t = task_for(i, 2, 0); // no limit of its own
    t.sampling.ignore_eos = true;
    e->submit(t);
  }
  results got;
  run_out(*e, got);
  for (std::int64_t i = 0; i < 40; ++i) {
    REQUIRE(got.at({i, 0}).generated() >= 10);
    REQUIRE(got.at({i, 1}).generated() == 20);
    REQUIRE(got.at({i, 2}).tokens.size() == 96);
    REQUIRE(got.at({i, 2}).finish == finish_reason::length);
  }
}

TEST_CASE("a partial rollout goes on elsewhere as if nothing had happened") {
  const auto tasks = mixed_tasks();
  const auto expected = one_by_one(tasks);
  auto e = engine_at(0, plain);
  for (const auto& t : tasks)
    e->submit(t);
  results got;
  std::map<rollout_id, sampling_params> how;
  for (const auto& t : tasks)
    how[t.so_far.id] = t.sampling;
  random_stream draws(8);
  for (int moves = 0; e->running() + e->waiting() > 0; ++moves) {
    REQUIRE(moves < 200);
    for (auto n = 1 + draws.below(9); n > 0; --n)
      for (auto& r : e->step())
        got.emplace(r.id, std::move(r));
    const auto partials = e->partials();
    const auto drained = e->drain();
    REQUIRE(partials.size() == drained.size());
    REQUIRE(e->running() + e->waiting() == 0);
    REQUIRE(e->statistics().kv_blocks_free == e->statistics().kv_blocks);
    auto other = engine_at(0, plain);
    for (std::size_t i = 0; i < drained.size(); ++i) {
      REQUIRE(same(drained[i], partials[i]));
      other->submit({drained[i], how.at(drained[i].id)});
    }
    e = std::move(other);
  }
  for (const auto& [id, r] : expected)
    REQUIRE(same(got.at(id), r));
}

TEST_CASE("cancelled rollouts leave nothing behind") {
  const auto tasks = mixed_tasks();
  const auto expected = one_by_one(tasks);
  auto e = engine_at(0, plain);
  for (const auto& t : tasks)
    e->submit(t);
  e->step();
  REQUIRE_FALSE(e->cancel({999, 0}));
  for (std::size_t i = 0; i < tasks.size(); i += 2)
    REQUIRE(e->cancel(tasks[i].so_far.id));
  REQUIRE_FALSE(e->cancel(tasks[0].so_far.id));
  results got;
  run_out(*e, got);
  REQUIRE(got.size() == tasks.size() / 2);
  for (const auto& [id, r] : got)
    REQUIRE(same(r, expected.at(id)));
  REQUIRE(e->statistics().kv_blocks_free == e->statistics().kv_blocks);
  e->submit(tasks[0]); // its id is free again
}

TEST_CASE("a rollout that has ended already is handed back at once") {
  const auto tasks = mixed_tasks();
  auto expected = one_by_one(tasks);
  auto e = engine_at(0, plain);
  for (const auto& t : tasks) {
    auto again = expected.at(t.so_far.id);
    again.finish = finish_reason::none;
    e->submit({again, t.sampling});
  }
  results got;
  run_out(*e, got, 3);
  for (const auto& [id, r] : expected)
    REQUIRE(same(got.at(id), r));
}

TEST_CASE("tasks that cannot be generated from are refused by name") {
  auto e = engine_at(0, plain);
  auto t = task_for(1, 0);
  t.so_far.prompt_length = 0;
  REQUIRE(error_of(*e, t).find("1.0") != std::string::npos);
  t = task_for(1, 0);
  t.so_far.tokens[0] = 31;
  REQUIRE(error_of(*e, t).find("vocabulary of 31") != std::string::npos);
  t = task_for(1, 0);
  t.so_far.versions.pop_back();
  REQUIRE(error_of(*e, t).find("equally long") != std::string::npos);
  t = task_for(1, 0, 5, 96);
  REQUIRE(error_of(*e, t).find("context of 96") != std::string::npos);
  e->submit(task_for(1, 0));
  REQUIRE_THROWS_AS(e->submit(task_for(1, 0)), invariant_error);
}

TEST_CASE("options that cannot work are refused") {
  const auto refused = [](const engine_options& o) {
    try {
      make_engine(o, engine_config(), nullptr);
    } catch (const user_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  REQUIRE(refused({.max_batch = 0}).find("max_batch") != std::string::npos);
  REQUIRE(refused({.max_context = 97}).find("96 positions") != std::string::npos);
  REQUIRE(refused({.kv_cache_tokens = 80}).find("kv_cache_tokens") != std::string::npos);
  REQUIRE(refused({.threads = 0}).find("threads") != std::string::npos);
  REQUIRE(refused({.prefill_tokens = 0}).find("prefill_tokens") != std::string::npos);
  auto e = make_engine({}, engine_config(), nullptr);
  REQUIRE(e->current() == no_version);
  REQUIRE_THROWS_AS(e->step(), invariant_error);
}

TEST_CASE("finished rollouts carry their text") {
  auto c = engine_config();
  std::shared_ptr<const model::tokenizer> tokens =
    model::make_character_tokenizer({"abcdefghijklmnopqrstuvwxyz .", false});
  auto e = make_engine({}, c, tokens);
  model::initialise(c, e->staging(), 0);
  e->install({0});
  e->submit(task_for(4, 0, 12));
  results got;
  run_out(*e, got);
  const auto& r = got.at({4, 0});
  REQUIRE(r.text == tokens->decode(std::span(r.tokens).subspan(
                      static_cast<std::size_t>(r.prompt_length))));
  c.vocab_size = 30;
  REQUIRE_THROWS_AS(make_engine({}, c, tokens), user_error);
}

TEST_CASE("weights that are not numbers stop generation with a reason") {
  auto e = engine_at(0, plain);
  e->submit(task_for(1, 0));
  e->step();
  for (const auto& v : e->staging())
    if (v.name == "model.norm.weight")
      reinterpret_cast<float*>(v.data)[0] = std::numeric_limits<float>::quiet_NaN();
  e->install({1});
  REQUIRE_THROWS_AS(e->step(), user_error);
  REQUIRE(e->partials().size() == 1);
}

TEST_CASE("outstanding tokens count down to nothing") {
  auto options = plain;
  options.prefill_tokens = 512; // all prompts at once
  auto e = engine_at(0, options);
  for (std::int32_t i = 0; i < 20; ++i) {
    auto t = task_for(i, 0, 10);
    t.sampling.ignore_eos = true;
    e->submit(t);
  }
  REQUIRE(e->outstanding_tokens() == 200);
  e->step();
  REQUIRE(e->outstanding_tokens() == 200 - 16);
  results got;
  run_out(*e, got);
  REQUIRE(e->outstanding_tokens() == 0);
}
