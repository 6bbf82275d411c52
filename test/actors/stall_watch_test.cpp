#include "actors/stall_watch.hpp"
#include "runtime/metrics/board.hpp"
#include "runtime/metrics/catalogue.hpp"

#include <catch2/catch.hpp>

#include <memory>
#include <vector>

using namespace millrace;

namespace {

actor_snapshot actor(std::string kind, std::string name, std::string state, std::string on = {},
                     std::string reason = {}, double since = 40) {
  actor_snapshot a;
  metric_set(kind).snapshot(a);
  a.name = std::move(name);
  a.node = "local";
  a.state = std::move(state);
  a.waits_for = std::move(on);
  a.reason = std::move(reason);
  a.since = since;
  return a;
}

/// A stream whose generator hangs.
std::vector<actor_snapshot> hung() {
  auto stuck = actor("generator", "generator-1", "decoding", {}, {}, 41);
  stuck.silent = 40;
  return {actor("process", "process", "training"),
          actor("controller", "controller", "waiting", "generators", "64 rollouts to finish"),
          actor("generator", "generator-0", "waiting", "controller", "rollouts to start"),
          stuck,
          actor("replay", "replay", "waiting", "controller", "64 more rollouts for the step from v3"),
          actor("trainer", "trainer", "waiting", "replay", "a batch for the step from v3")};
}

std::vector<actor_snapshot> with_steps(double n) {
  auto actors = hung();
  for (auto& a : actors)
    for (auto& c : a.counters)
      if (c.name == metrics::steps_trained.info().name)
        c.value = n;
  return actors;
}

} // namespace

TEST_CASE("wait graph: from the trainer down to the one that is stuck") {
  auto report = wait_graph(hung());
  std::vector<std::string> order;
  for (const auto& w : report.waits)
    order.push_back(w.owner);
  CHECK(order
        == std::vector<std::string>{"trainer", "replay", "controller", "generator-1", "generator-0"});
  CHECK(report.root == "generator-1 is decoding for 41 s, without taking a message for 40 s");
  report.idle_s = 40;
  auto text = report.text();
  INFO(text);
  CHECK(text.find("trainer      waits 40 s for replay: a batch for the step from v3\n")
        != std::string::npos);
  CHECK(text.find("generator-1  decoding for 41 s; took no message for 40 s\n") != std::string::npos);
  CHECK(text.find("no step so far") != std::string::npos);
  CHECK(text.find("0 running") != std::string::npos);
}

TEST_CASE("wait graph: someone who is missing, a circle, and no trainer are named") {
  auto actors = hung();
  std::erase_if(actors, [](const auto& a) { return a.kind == "replay"; });
  CHECK(wait_graph(actors).root == "no actor answers to \"replay\"");
  actors = hung();
  for (auto& a : actors)
    if (a.kind == "controller")
      a.waits_for = "trainer";
  CHECK(wait_graph(actors).root == "a circle: trainer waits for itself in the end");
  CHECK(wait_graph({}).root == "there is no trainer");
}

TEST_CASE("wait graph: a node that is stopped is found, though its last word was that it waits") {
  auto actors = hung();
  for (auto& a : actors)
    a.node = "head";
  for (auto& a : actors)
    if (a.kind == "generator") {
      a.node = "gen0";
      a.state = "waiting";
      a.waits_for = "controller";
      a.silent = 19;
    }
  auto lost = actor("process", "process", "no answer", {}, {}, 19);
  lost.node = "gen0";
  actors.push_back(lost);
  auto report = wait_graph(actors);
  INFO(report.text());
  CHECK(report.root
        == "gen0/generator-1 gives no sign of life for 19 s; its process hangs, or is out of reach");
  CHECK(report.text().find("gen0/process      no answer for 19 s") != std::string::npos);
  CHECK(report.text().find("head/trainer") != std::string::npos);
}

TEST_CASE("wait graph: a kind of actors stands for the one at work, else for the longest wait") {
  auto actors = hung();
  for (auto& a : actors)
    if (a.name == "generator-1") {
      a.state = "waiting";
      a.waits_for = "publisher";
    }
  auto waits = wait_graph(actors).waits;
  CHECK(waits[3].owner == "generator-1"); // 41 s against 40 s
}

TEST_CASE("stall watch: speaks at the limit, then each time that it has doubled, and never without") {
  stall_watch watch{30, 100};
  CHECK_FALSE(watch.look(with_steps(0), 101));
  CHECK_FALSE(watch.look(with_steps(0), 130));
  auto report = watch.look(with_steps(0), 131.5);
  REQUIRE(report);
  CHECK(report->idle_s == Approx(30.5));
  CHECK(watch.stalled());
  CHECK_FALSE(watch.look(with_steps(0), 150));
  CHECK(watch.look(with_steps(0), 163));
  CHECK_FALSE(watch.look(with_steps(0), 200));
  CHECK(watch.stalled());
  CHECK_FALSE(watch.look(with_steps(1), 201)); // it goes on
  CHECK_FALSE(watch.stalled());
  CHECK_FALSE(watch.look(with_steps(1), 230.9));
  CHECK(watch.look(with_steps(1), 231.1));
  stall_watch off{0, 100};
  CHECK_FALSE(off.look(with_steps(0), 1e6));
  CHECK_FALSE(off.stalled());
}
