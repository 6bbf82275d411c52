#include "actors/hub_actor.hpp"
#include "actors/node_link.hpp"
#include "actors/shell.hpp"
#include "actors/stream_config.hpp"
#include "runtime/config/config.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <thread>

using namespace millrace;

namespace {

settings cluster() {
  return parse_settings(R"({"cluster": {"nodes": [
    {"name": "head", "port": 4700, "actors": {"trainer": 1, "generator": 1}},
    {"name": "a", "actors": {"generator": 1}},
    {"name": "b", "actors": {"generator": 2}},
    {"name": "judge", "actors": {"reward": 1, "replay": 1}}]}})",
                        "c.json");
}

class hub_config : public stream_config {
public:
  hub_config() { add_cluster_message_types(*this); }
};

/// A hub with this thread as every node's agent and as the trainer's supervisor.
class hub_fixture {
public:
  hub_fixture() : system_(config_), self(system_) {
    hub_options o;
    o.options = cluster();
    o.on_stop = [this] { stopped = true; };
    o.events = [](const std::string&) {};
    o.step = [] { return 144; };
    hub = system_.spawn(hub_actor, o);
  }
  ~hub_fixture() { caf::anon_send_exit(hub, caf::exit_reason::kill); }

  void open() {
    hub_opening o;
    o.options = "{}";
    o.supervisor = caf::actor{self};
    caf::anon_send(hub, o);
  }
  node_welcome hello(const std::string& name, const settings& s = cluster(),
                     const std::string& build = build_identity()) {
    return hello(name, caf::actor{self}, s, build);
  }
  node_welcome hello(const std::string& name, const caf::actor& agent,
                     const settings& s = cluster(), const std::string& build = build_identity()) {
    node_welcome out;
    self->request(hub, caf::infinite, node_hello{name, build, resolved_json(s), host, 7, agent})
      .receive([&](const node_welcome& w) { out = w; },
               [&](const caf::error& e) { FAIL(text_of(e, system_)); });
    return out;
  }
  template <class... Question>
  std::string ask(Question... q) {
    std::string out;
    self->request(hub, caf::infinite, q...)
      .receive([&](const std::string& text) { out = text; },
               [&](const caf::error& e) { out = "error: " + text_of(e, system_); });
    return out;
  }
  std::string state_of(const std::string& node) {
    auto status = nlohmann::json::parse(ask(status_atom::value));
    for (const auto& n : status["nodes"])
      if (n["name"] == node)
        return n["state"];
    return "none";
  }

  bool becomes(const std::string& node, const std::string& state) {
    return test::comes_true([&] { return state_of(node) == state; });
  }

private:
  hub_config config_;
  caf::actor_system system_;

public:
  caf::scoped_actor self;
  caf::actor hub;
  host_facts host{"here"}; ///< that nodes say they run on
  std::atomic<bool> stopped = false;
};

caf::behavior quiet_agent(caf::event_based_actor*) {
  return {[](tick_atom) {}};
}

} // namespace

TEST_CASE("hub: nodes wait until the stream is up, and are then let in") {
  hub_fixture f;
  caf::anon_send(f.hub, tick_atom::value, std::string("warming up"));
  auto early = f.hello("a");
  CHECK(early.kind == welcome_kind::wait);
  CHECK(early.text == "warming up");
  CHECK(f.state_of("a") == "waiting");
  CHECK(f.state_of("head") == "up");
  auto impatient = f.self->spawn(quiet_agent);
  CHECK(f.hello("b", impatient).kind == welcome_kind::wait);
  CHECK(f.state_of("b") == "waiting");
  caf::anon_send_exit(impatient, caf::exit_reason::kill);
  CHECK(f.becomes("b", "missing"));
  f.open();
  CHECK(f.hello("a").kind == welcome_kind::welcome);
  CHECK(f.state_of("a") == "up");
  CHECK(f.state_of("b") == "missing");
  CHECK(f.hello("a").kind == welcome_kind::welcome); // asked again: its answer was lost
}

TEST_CASE("hub: strangers, twins, other builds and other configurations are refused, with the reason") {
  hub_fixture f;
  f.open();
  auto refused = [](const node_welcome& w, const std::string& why) {
    CHECK(w.kind == welcome_kind::refused);
    CHECK_THAT(w.text, Catch::Contains(why));
  };
  refused(f.hello("c"), "no node of this name");
  refused(f.hello("head"), "trainer's node itself");
  refused(f.hello("a", cluster(), "millrace 9"), "another build (millrace 9)");
  auto other = cluster();
  other.rollout.eta = 7;
  refused(f.hello("a", other), "rollout.eta is 2 on the trainer's node and 7 here");
  auto log_only = cluster();
  log_only.log.level = log_level::error;
  CHECK(f.hello("a", log_only).kind == welcome_kind::welcome);
  auto twin = f.self->spawn(quiet_agent);
  refused(f.hello("a", twin), "up already, on here, process 7");
  caf::anon_send_exit(twin, caf::exit_reason::kill);
}

TEST_CASE("hub: a node whose agent ends without a reason is lost like any other") {
  hub_fixture f;
  f.open();
  auto agent = f.self->spawn([](caf::event_based_actor* self) -> caf::behavior {
    return {[self](tick_atom) { self->quit(); }};
  });
  CHECK(f.hello("a", agent).kind == welcome_kind::welcome);
  caf::anon_send(agent, tick_atom::value);
  f.self->wait_for(agent);
  CHECK(f.becomes("a", "lost"));
}

TEST_CASE("hub: a node that dies is lost and may come back; one that leaves has left") {
  hub_fixture f;
  f.open();
  auto agent = f.self->spawn(quiet_agent);
  CHECK(f.hello("a", agent).kind == welcome_kind::welcome);
  caf::anon_send_exit(agent, caf::exit_reason::kill);
  f.self->wait_for(agent);
  CHECK(f.becomes("a", "lost"));
  CHECK(f.hello("a").kind == welcome_kind::welcome);
  f.self->send(f.hub, leave_atom::value, std::string("a"));
  CHECK(f.state_of("a") == "left");
}

TEST_CASE("hub: scaling spreads over the nodes that have the kind, and says so") {
  hub_fixture f;
  CHECK_THAT(f.ask(scale_atom::value, std::string("generator"), std::int64_t{4}),
             Catch::Contains("not up yet"));
  f.open();
  f.hello("a");
  f.hello("b");
  // head 1, a 1, b 2: two more go to head and a.
  CHECK(f.ask(scale_atom::value, std::string("generator"), std::int64_t{6})
        == "generator: 4 → 6\n  a: 1 → 2\n  b: 2 → 2\n  head: 1 → 2");
  std::vector<std::int64_t> asked;
  for (int i = 0; i < 2; ++i)
    f.self->receive([&](scale_atom, const std::string&, std::int64_t n) {
      asked.push_back(n);
      return std::int64_t{1};
    });
  CHECK(asked == std::vector<std::int64_t>{2, 2});
  CHECK_THAT(f.ask(scale_atom::value, std::string("trainer"), std::int64_t{2}),
             Catch::Contains("can't be scaled"));
  CHECK_THAT(f.ask(scale_atom::value, std::string("generator"), std::int64_t{0}),
             Catch::Contains("at least one"));
}

TEST_CASE("hub: more generators than a host has processors and memory for run, and it is said") {
  hub_fixture f;
  f.host = {"here", 2, 1 << 20};
  f.open();
  f.hello("b");
  auto scale = [&](std::int64_t n) {
    return f.ask(scale_atom::value, std::string("generator"), n);
  };
  auto text = scale(8);
  CHECK_THAT(text, Catch::Contains("generator: 3 → 8\n")
                     && Catch::Contains("note: here has 2 processors for 4 threads of generators")
                     && Catch::Contains("note: here has 1.0 MB of memory, and its 4 generators"));
  CHECK_THAT(scale(2), !Catch::Contains("note"));
}

TEST_CASE("hub: the state tells step and nodes") {
  hub_fixture f;
  auto status = nlohmann::json::parse(f.ask(status_atom::value));
  CHECK(status["step"] == 144);
  CHECK(status["steps"] == cluster().run.steps);
  CHECK(status["nodes"][0]["name"] == "a");
}

TEST_CASE("hub: a node that waits may be followed by another process of its name") {
  hub_fixture f;
  auto first = f.self->spawn(quiet_agent), second = f.self->spawn(quiet_agent);
  for (const auto& agent : {first, second, first, second}) // while the first lives, they take turns
    CHECK(f.hello("a", agent).kind == welcome_kind::wait);
  caf::anon_send_exit(first, caf::exit_reason::kill);
  f.self->wait_for(first);
  for (int i = 0; i < 20; ++i) { // its end is heard of some time now
    CHECK(f.state_of("a") != "missing");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  f.open();
  CHECK(f.hello("a", second).kind == welcome_kind::welcome);
  CHECK(f.hello("a").kind == welcome_kind::refused);
  caf::anon_send_exit(second, caf::exit_reason::kill);
  CHECK(f.becomes("a", "lost"));
}

TEST_CASE("hub: a node that still waits when the run is over is told") {
  hub_fixture f;
  CHECK(f.hello("a").kind == welcome_kind::wait);
  caf::anon_send(f.hub, finished_atom::value, std::string("it failed"));
  std::string told;
  f.self->receive([&](finished_atom, const std::string& how) { told = how; },
                  caf::after(test::patience) >> [] {});
  CHECK(told == "it failed");
  CHECK(f.hello("a").kind == welcome_kind::over);
}

TEST_CASE("hub: when the run is over every node is told, and nobody is let in") {
  hub_fixture f;
  f.open();
  auto agent = f.self->spawn([](caf::event_based_actor*) -> caf::behavior {
    return {[](finished_atom, const std::string&) {}};
  });
  f.hello("b", agent);
  f.self->request(f.hub, caf::infinite, finished_atom::value, std::string("all steps are done"))
    .receive([] {}, [](const caf::error&) { FAIL("no answer"); });
  auto late = f.hello("a");
  CHECK(late.kind == welcome_kind::over);
  CHECK(late.text == "all steps are done");
  f.self->request(f.hub, caf::infinite, stop_atom::value).receive([] {}, [](const caf::error&) {});
  CHECK(f.stopped);
  caf::anon_send_exit(agent, caf::exit_reason::kill);
}
