#include "runtime/metrics/board.hpp"
#include "runtime/metrics/catalogue.hpp"
#include "runtime/metrics/exposition.hpp"
#include "runtime/metrics/lookup.hpp"
#include "runtime/metrics/node_tree.hpp"
#include "runtime/metrics/run_series.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

using namespace millrace;

TEST_CASE("board: an actor's age goes on while it says the same, and starts anew with another state") {
  snapshot_board board;
  auto a = board.add("trainer", "trainer", 10);
  a->waiting("replay", "a batch", 11);
  a->waiting("replay", "a batch", 15);
  CHECK(board.snapshots(16)[0].since == 5);
  CHECK(board.snapshots(16)[0].state == "waiting");
  a->working("training", 17);
  auto s = board.snapshots(18)[0];
  CHECK(s.since == 1);
  CHECK(s.waits_for == "");
  CHECK(s.silent == 8);
  a->beat(3, 18);
  CHECK(board.snapshots(18)[0].silent == 0);
  CHECK(board.snapshots(18)[0].mailbox == 3);
}

TEST_CASE("board: asks those who are there, and forgets who has ended") {
  snapshot_board board;
  int asked = 0;
  auto a = board.add("trainer", "trainer", 0, [&] { ++asked; });
  auto b = board.add("reward", "reward-0", 0);
  board.ask_all();
  CHECK(asked == 1);
  a.reset();
  board.ask_all();
  CHECK(asked == 1);
  REQUIRE(board.snapshots(1).size() == 1);
  CHECK(board.snapshots(1)[0].name == "reward-0");
}

TEST_CASE("tree: other nodes as they answered, older by the second, forgotten when they leave") {
  auto board = std::make_shared<snapshot_board>();
  node_tree tree{board};
  auto mine = board->add("trainer", "trainer", 0);
  tree.expect("b", 0);
  actor_snapshot far;
  far.kind = "generator";
  far.name = "generator-1";
  far.since = 2;
  CHECK(tree.all(1).size() == 2);
  tree.update("b", {far}, 1);
  auto all = tree.all(3);
  REQUIRE(all.size() == 3);
  CHECK(all[1].kind == "process");
  CHECK(all[1].state == "starting");
  CHECK(all[2].node == "b");
  CHECK(all[2].since == 4);
  CHECK(tree.all(20)[1].state == "no answer");
  tree.forget("b");
  CHECK(tree.all(21).size() == 1);
}

TEST_CASE("tree: the peak of each other node's memory is kept, whatever becomes of it") {
  node_tree tree{std::make_shared<snapshot_board>()};
  const auto tell = [&](const std::string& node, double bytes) {
    tree.update(node, {{.kind = "process", .gauges = {{metrics::peak_memory.info().name, "", bytes}}}}, 1);
  };
  tell("b", 300);
  tell("b", 200); // it was started again
  tree.update("c", {}, 1);
  tree.forget("b");
  CHECK(tree.peak_memory() == std::map<std::string, std::int64_t>{{"b", 300}, {"c", 0}});
}

TEST_CASE("lookup: sums, means and merged histograms over actors") {
  snapshot_board board;
  auto a = board.add("generator", "generator-0", 0);
  auto b = board.add("generator", "generator-1", 0);
  auto c = board.add("controller", "controller", 0);
  a->metrics.add(metrics::tokens_generated, 5);
  b->metrics.add(metrics::tokens_generated, 7);
  a->metrics.set(metrics::generator_idle_ratio, 0.5);
  a->metrics.observe(metrics::swap_pause, 0.25, 3);
  b->metrics.observe(metrics::swap_pause, 0.5);
  c->metrics.add(metrics::rollouts_ended, "trained", 3);
  c->metrics.add(metrics::rollouts_ended, "dropped", 4);
  auto all = board.snapshots(1);
  CHECK(total(all, metrics::tokens_generated) == 12);
  CHECK(mean(all, metrics::generator_idle_ratio) == 0.25);
  CHECK(largest(all, metrics::generator_idle_ratio) == 0.5);
  CHECK(total(all, metrics::rollouts_ended) == 7);
  CHECK(total(all, metrics::rollouts_ended, "dropped") == 4);
  auto h = merged(all, metrics::swap_pause);
  CHECK(h.count() == 4);
  CHECK(h.sum == 1.25);
  CHECK(total({}, metrics::tokens_generated) == 0);
  CHECK(mean({}, metrics::generator_idle_ratio) == 0);
}

TEST_CASE("series: rates over ten seconds, no jump when an actor is started again") {
  snapshot_board board;
  auto t = board.add("trainer", "trainer", 0);
  auto g = board.add("generator", "generator-0", 0);
  run_series series{0};
  for (int s = 0; s <= 20; ++s) {
    series.sample(board.snapshots(s), s);
    g->metrics.add(metrics::tokens_generated, s < 10 ? 100 : 300);
    t->metrics.add(metrics::tokens_trained, 50);
  }
  CHECK(series.rates().generated == Approx(300));
  CHECK(series.rates().trained == Approx(50));
  g.reset();
  g = board.add("generator", "generator-0", 21);
  series.sample(board.snapshots(21), 21);
  series.sample(board.snapshots(22), 22);
  CHECK(series.rates().generated == Approx(0));
  CHECK(series.rates().trained == Approx(0));
}

TEST_CASE("series: rates are right from the first second on, however long nothing was done before") {
  snapshot_board board;
  auto t = board.add("trainer", "trainer", 0);
  auto g = board.add("generator", "generator-0", 0);
  run_series series{0};
  for (int s = 0; s <= 30; ++s) // the warm-up
    series.sample(board.snapshots(s), s);
  CHECK(series.rates().generated == 0);
  for (int s = 31; s <= 50; ++s) {
    g->metrics.add(metrics::tokens_generated, 100);
    t->metrics.add(metrics::tokens_trained, 50);
    series.sample(board.snapshots(s), s);
    CHECK(series.rates().generated == Approx(100));
    CHECK(series.rates().trained == Approx(50));
  }
}

TEST_CASE("series: the whole course in bounded memory") {
  snapshot_board board;
  auto t = board.add("trainer", "trainer", 0);
  auto c = board.add("controller", "controller", 0);
  run_series series{100, 64};
  for (int s = 0; s < 5000; ++s) {
    c->metrics.set(metrics::stream_version, s);
    series.sample(board.snapshots(100 + s), 100 + s);
    REQUIRE(series.size() <= 64);
  }
  auto j = series.to_json();
  REQUIRE(j["t"].size() == series.size());
  CHECK(j["t"].size() >= 32);
  CHECK(j["t"][0] == 0);
  CHECK(j["t"].back().get<double>() > 4800);
  double gap = j["t"][1].get<double>() - j["t"][0].get<double>();
  for (std::size_t i = 1; i < j["t"].size(); ++i) {
    CHECK(j["t"][i].get<double>() - j["t"][i - 1].get<double>() == Approx(gap).margin(1.01));
    CHECK(j["step"][i] == j["t"][i]);
  }
}

TEST_CASE("snapshots survive JSON, and what is no snapshot does no harm") {
  snapshot_board board;
  auto t = board.add("generator", "generator-0", 0);
  t->waiting("controller", "rollouts", 1);
  t->metrics.observe(metrics::swap_stage, "pull", 0.5, 2);
  t->metrics.add(metrics::answers, "stop", 4);
  auto s = board.snapshots(3)[0];
  auto written = nlohmann::json::parse(to_json(s).dump());
  auto back = snapshot_from_json(written);
  CHECK(nlohmann::json::parse(to_json(back).dump()) == written);
  for (const char* text : {"null", "3", "[]", "{}", R"({"kind": 3, "counters": {"a": null}})",
                           R"({"histograms": {"h": {"bounds": [1], "counts": [1]}, "i": 5}})"})
    CHECK_NOTHROW(snapshot_from_json(nlohmann::json::parse(text)));
}
