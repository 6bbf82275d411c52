#include "fixtures.hpp"

#include "runtime/error.hpp"
#include "weightsync/convert.hpp"
#include "weightsync/local_transport.hpp"
#include "weightsync/publisher.hpp"
#include "weightsync/pull.hpp"

#include <catch2/catch.hpp>

#include <cstring>
#include <stdexcept>
#include <thread>

using namespace millrace;
using namespace millrace::weightsync;

namespace {

tensor_set small_model(dtype type = dtype::f32) {
  tensor_set t;
  t.add("embed", type, {31, 16});
  t.add("up", type, {48, 16});
  t.add("down", type, {16, 48});
  t.add("norm", type, {16});
  t.add("big", type, {300, 257});
  t.add("empty", type, {0, 4});
  return t;
}

} // namespace

TEST_CASE("a version arrives bit by bit, again and again") {
  local_transport carrier;
  auto trainer = small_model();
  publisher source(carrier, replicated(trainer.views()), {});
  auto staging = small_model();
  puller sink(carrier, staging.views(), replicated(staging.views()));
  std::mt19937_64 random(1);
  for (std::int32_t v = 0; v < 5; ++v) {
    trainer.randomise(random);
    publish_report published;
    auto m = source.publish({v}, trainer.views(), v, &published);
    REQUIRE(m);
    REQUIRE(published.bytes == m->bytes());
    auto granted = source.acquire("g", {v}, v);
    REQUIRE(granted);
    auto report = sink.pull(*m, {});
    INFO(report.error);
    REQUIRE(report.ready());
    REQUIRE(report.bytes >= static_cast<std::int64_t>(m->bytes()));
    REQUIRE(same_bytes(trainer, staging));
    REQUIRE(source.release(granted.id, v));
  }
  REQUIRE(source.current()->number == version{4});
}

TEST_CASE("the simple form, by several receivers at once") {
  local_transport carrier;
  auto trainer = small_model();
  std::mt19937_64 random(2);
  trainer.randomise(random);
  publisher source(carrier, replicated(trainer.views()), {});
  auto m = source.publish({0}, trainer.views(), 0);
  std::vector<std::thread> threads;
  std::vector<tensor_set> staging(3);
  std::vector<pull_report> reports(3);
  for (std::size_t i = 0; i < 3; ++i) {
    staging[i] = small_model();
    threads.emplace_back(
      [&, i] { reports[i] = pull(*m, staging[i].views(), carrier, 10); });
  }
  for (auto& t : threads)
    t.join();
  for (std::size_t i = 0; i < 3; ++i) {
    REQUIRE(reports[i].ready());
    REQUIRE(same_bytes(trainer, staging[i]));
  }
}

TEST_CASE("what several threads publish in one pass is right, and so are its changes") {
  local_transport carrier;
  tensor_set trainer;
  for (int i = 0; i < 5; ++i)
    trainer.add("w" + std::to_string(i), dtype::f32, {1001, 2003});
  trainer.add("norm", dtype::f32, {77});
  auto staging = tensor_set::like(replicated(trainer.views()), dtype::f32);
  auto kept = tensor_set::like(replicated(trainer.views()), dtype::f32);
  std::mt19937_64 random(5);
  trainer.randomise(random);
  for (std::size_t threads : {1, 2, 3}) {
    publisher_options how;
    how.threads = threads;
    how.delta = threads > 1;
    publisher source(carrier, replicated(trainer.views()), how);
    puller sink(carrier, staging.views(), replicated(staging.views()));
    pull_options pull;
    for (std::int32_t v = 0; v < 3; ++v) {
      auto* values = reinterpret_cast<float*>(trainer.views()[static_cast<std::size_t>(v)].data);
      for (int i = 0; i < 1000; ++i)
        values[random() % 2'000'000] += 1;
      publish_report report;
      auto m = source.publish({v}, trainer.views(), v, &report);
      REQUIRE(report.bytes == m->bytes());
      auto got = sink.pull(*m, pull);
      INFO(got.error);
      REQUIRE(got.ready());
      REQUIRE(same_bytes(trainer, staging));
      REQUIRE(got.delta == (how.delta && v > 0));
      REQUIRE((got.saved_bytes > 30'000'000) == got.delta);
      for (std::size_t i = 0; i < staging.views().size(); ++i)
        std::memcpy(kept.views()[i].data, staging.views()[i].data, staging.views()[i].bytes());
      pull.base = kept.views();
      pull.base_version = {v};
    }
  }
}

TEST_CASE("bf16 on arrival and bf16 on the wire give the same bits") {
  local_transport carrier;
  auto trainer = small_model();
  std::mt19937_64 random(3);
  trainer.randomise(random);
  publisher wide(carrier, replicated(trainer.views()), {});
  publisher_options narrow_options;
  narrow_options.wire_type = [](const placement&, dtype) { return dtype::bf16; };
  publisher narrow(carrier, replicated(trainer.views()), narrow_options);
  auto a = small_model(dtype::bf16);
  auto b = small_model(dtype::bf16);
  auto wide_report = pull(*wide.publish({0}, trainer.views(), 0), a.views(), carrier, 10);
  auto narrow_report = pull(*narrow.publish({0}, trainer.views(), 0), b.views(), carrier, 10);
  REQUIRE(wide_report.ready());
  REQUIRE(narrow_report.ready());
  REQUIRE(narrow_report.bytes < wide_report.bytes * 6 / 10);
  REQUIRE(same_bytes(a, b));
  for (const auto& v : trainer.views())
    for (std::int64_t i = 0; i < v.elements(); ++i) {
      std::uint16_t expected = 0;
      f32_to_bf16(reinterpret_cast<const float*>(v.data) + i, &expected, 1);
      REQUIRE(reinterpret_cast<const std::uint16_t*>(a[v.name].data)[i] == expected);
    }
}

TEST_CASE("i8 per row, quantised by either side, with its scales") {
  local_transport carrier;
  auto trainer = small_model();
  std::mt19937_64 random(4);
  trainer.randomise(random);
  auto quantised = [] {
    tensor_set t;
    for (const auto* name : {"embed", "up", "down", "big"}) {
      tensor_shape shape = small_model()[name].shape;
      t.add(name, dtype::i8, shape);
      t.add(scale_name(name), dtype::f32, {shape[0]});
    }
    t.add("norm", dtype::f32, {16});
    return t;
  };
  publisher_options small; // shards that end within rows
  small.shard_bytes = 100;
  publisher wide(carrier, replicated(trainer.views()), small);
  small.wire_type = [](const placement& p, dtype t) { return p.shape.size() == 2 ? dtype::i8 : t; };
  publisher narrow(carrier, replicated(trainer.views()), small);
  auto a = quantised();
  auto b = quantised();
  auto wide_report = pull(*wide.publish({0}, trainer.views(), 0), a.views(), carrier, 10);
  REQUIRE(wide_report.ready());
  auto m = narrow.publish({0}, trainer.views(), 0);
  REQUIRE(m);
  auto narrow_report = pull(*m, b.views(), carrier, 10);
  REQUIRE(narrow_report.ready());
  auto big = a["big"];
  auto scales = a.floats("big_scale");
  for (std::int64_t i = 0; i < big.elements(); ++i) {
    auto scale = scales[i / 257];
    auto x = trainer.floats("big")[i];
    REQUIRE(std::abs(static_cast<float>(static_cast<std::int8_t>(big.data[i])) * scale - x)
            <= 0.5001F * scale);
  }
  REQUIRE(std::memcmp(a.floats("big_scale"), b.floats("big_scale"), 300 * 4) == 0);
  // "big" has rows longer than a shard, so it was quantised a second time on arrival: its integers
  // may move by one step where dequantising rounded.
  REQUIRE(std::memcmp(a["up"].data, b["up"].data, a["up"].bytes()) == 0);
  auto f = small_model(dtype::f32);
  REQUIRE(pull(*m, f.views(), carrier, 10).ready());
  auto h = small_model(dtype::bf16);
  REQUIRE(pull(*m, h.views(), carrier, 10).ready());
  REQUIRE(std::abs(f.floats("up")[5] - trainer.floats("up")[5]) < 0.05F);
}

TEST_CASE("what cannot fit is refused, naming the tensor") {
  local_transport carrier;
  auto trainer = small_model();
  publisher source(carrier, replicated(trainer.views()), {});
  auto m = source.publish({0}, trainer.views(), 0);
  auto refused = [&](const tensor_set& staging, const std::string& named) {
    REQUIRE_THROWS_WITH(pull(*m, staging.views(), carrier, 10), Catch::Contains(named));
  };
  tensor_set unknown;
  unknown.add("other", dtype::f32, {3});
  refused(unknown, "other");
  tensor_set shape;
  shape.add("up", dtype::f32, {16, 48});
  refused(shape, "up");
  tensor_set type;
  type.add("up", dtype::i64, {48, 16});
  refused(type, "i64");
  tensor_set no_scale;
  no_scale.add("up", dtype::i8, {48, 16});
  refused(no_scale, "up_scale");
  layout missing = {{"up", {48, 16}, whole({48, 16}), "gone", 0}};
  publisher broken(carrier, missing, {});
  REQUIRE_THROWS_WITH(broken.publish({0}, trainer.views(), 0), Catch::Contains("gone"));
}

TEST_CASE("a pull can be stopped, times out, and notices that the memory is gone") {
  local_transport carrier;
  auto trainer = small_model();
  auto staging = small_model();
  std::optional<manifest> m;
  {
    publisher source(carrier, replicated(trainer.views()), {});
    m = source.publish({0}, trainer.views(), 0);
    auto stopped = pull(*m, staging.views(), carrier, 10, [] { return true; });
    REQUIRE(stopped.outcome == pull_outcome::stopped);
    auto late = pull(*m, staging.views(), carrier, 0);
    REQUIRE(late.outcome == pull_outcome::timed_out);
  }
  auto gone = pull(*m, staging.views(), carrier, 10);
  REQUIRE(gone.outcome == pull_outcome::failed);
  REQUIRE(gone.error.find("gone") != std::string::npos);
}

TEST_CASE("a pull that ends by an exception leaves no reads, and the next one is whole") {
  local_transport carrier;
  auto trainer = small_model(), staging = small_model();
  std::mt19937_64 random(8);
  trainer.randomise(random);
  publisher source(carrier, replicated(trainer.views()), {});
  const auto m = source.publish({0}, trainer.views(), 0);
  puller sink(carrier, staging.views(), replicated(staging.views()));
  for (int until = 0; until < 4; ++until) {
    auto doomed = *m; // goes before the next pull, and with it what reads were asked of
    pull_options o;
    o.fetch_bytes = 1000;
    o.should_stop = [&, asked = 0]() mutable -> bool {
      return asked++ == until ? throw std::runtime_error("stop") : false;
    };
    REQUIRE_THROWS_AS(sink.pull(doomed, o), std::runtime_error);
  }
  REQUIRE(sink.pull(*m, {}).ready());
  REQUIRE(same_bytes(trainer, staging));
}

TEST_CASE("bytes that are not the manifest's are never ready, and the shard is named") {
  local_transport carrier;
  auto trainer = small_model();
  publisher source(carrier, replicated(trainer.views()), {});
  auto m = source.publish({0}, trainer.views(), 0);
  m->tensors[4].shards[0].checksum ^= 1;
  auto staging = small_model();
  auto report = pull(*m, staging.views(), carrier, 10);
  REQUIRE(report.outcome == pull_outcome::failed);
  REQUIRE(report.error.find("shard 0 of big from trainer rank 0") != std::string::npos);
  REQUIRE(report.retries == 2);
}

TEST_CASE("replicas share the load, and stand in for a lost owner") {
  local_transport carrier;
  auto trainer = small_model();
  std::mt19937_64 random(5);
  trainer.randomise(random);
  publisher first(carrier, replicated(trainer.views()), {2, 10, 4096, {}, {}});
  auto second = std::make_unique<publisher>(carrier, replicated(trainer.views()),
                                            publisher_options{2, 10, 4096, {}, {}});
  auto m = merge(std::vector{*first.publish({0}, trainer.views(), 0),
                             *second->publish({0}, trainer.views(), 0)});
  auto staging = small_model();
  auto plan = make_plan(m, replicated(staging.views()), staging.views(), {});
  std::uint64_t load[2] = {0, 0};
  for (const auto& f : plan.fetches)
    load[f.owner] += f.bytes;
  REQUIRE(plan.needed_bytes == m.bytes() / 2);
  REQUIRE(std::max(load[0], load[1]) - std::min(load[0], load[1]) <= 8192);
  second.reset();
  auto report = pull(m, staging.views(), carrier, 10);
  INFO(report.error);
  REQUIRE(report.ready());
  REQUIRE(same_bytes(trainer, staging));
}

TEST_CASE("changes only, from version to version, for the receiver that has the one before") {
  local_transport carrier;
  auto trainer = small_model();
  std::mt19937_64 random(6);
  trainer.randomise(random);
  publisher_options with_delta;
  with_delta.delta = true;
  with_delta.wire_type = [](const placement&, dtype) { return dtype::bf16; };
  publisher source(carrier, replicated(trainer.views()), with_delta);
  // A generator with two sets of weights: one in use, one being filled.
  tensor_set sets[2] = {small_model(dtype::bf16), small_model(dtype::bf16)};
  auto target = replicated(sets[0].views());
  puller sink(carrier, sets[0].views(), target);
  for (std::int32_t v = 0; v < 6; ++v) {
    auto* big = reinterpret_cast<float*>(trainer["big"].data);
    for (int i = 0; i < 50 * v; ++i)
      big[random() % 77'100] += 1;
    auto m = source.publish({v}, trainer.views(), v);
    REQUIRE(m);
    auto& staging = sets[v % 2];
    auto& in_use = sets[(v + 1) % 2];
    sink.retarget(staging.views());
    pull_options how;
    how.base = in_use.views();
    how.base_version = {v - 1};
    if (v == 4) { // a base that isn't what it says it is: found out, and pulled in full
      reinterpret_cast<std::uint16_t*>(in_use["big"].data)[7] ^= 1;
    }
    auto report = sink.pull(*m, how);
    INFO(v << ": " << report.error);
    REQUIRE(report.ready());
    REQUIRE(report.delta == (v > 0 && v != 4));
    if (report.delta)
      REQUIRE(report.bytes < static_cast<std::int64_t>(m->bytes()) / 10);
    auto expected = small_model(dtype::bf16);
    REQUIRE(pull(*m, expected.views(), carrier, 10).ready());
    REQUIRE(same_bytes(expected, staging));
  }
}

TEST_CASE("reports compare themselves with the measured link") {
  local_transport carrier;
  auto trainer = small_model();
  publisher source(carrier, replicated(trainer.views()), {});
  auto m = source.publish({0}, trainer.views(), 0);
  auto staging = small_model();
  puller sink(carrier, staging.views(), replicated(staging.views()));
  REQUIRE(sink.measure_link(*m, 0.01) > 0);
  auto report = sink.pull(*m, {});
  REQUIRE(report.ready());
  REQUIRE(report.link_share > 0);
  m->owners[0].key = "gone";
  REQUIRE(sink.measure_link(*m, 0.01) == 0);
}
