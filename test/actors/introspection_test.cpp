#include "actors/introspection.hpp"
#include "actors/introspector_actor.hpp"
#include "runtime/metrics/catalogue.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

using namespace millrace;
using test::comes_true;

namespace {

struct test_config : caf::actor_system_config, introspection_config {
  test_config() {
    show_on(std::make_shared<snapshot_board>());
    millrace::add_message_types(*this);
    set("scheduler.policy", caf::atom("sharing"));
    set("scheduler.max-threads", std::size_t{2});
  }
};

struct worker_state {
  static inline const char* name = "worker";
  presence seen;
};

/// At its first tick it works so long, deaf to all else; later ones take little.
caf::behavior worker(caf::stateful_actor<worker_state>* self, std::string name, double busy_s) {
  auto& seen = self->state.seen;
  seen = {self, "generator", name};
  seen.waiting("controller", "rollouts to start");
  return {
    [&seen, left_s = busy_s](tick_atom) mutable {
      seen.working("decoding");
      seen.metrics().add(metrics::tokens_generated, 7);
      std::this_thread::sleep_for(std::chrono::duration<double>(std::exchange(left_s, 0.02)));
      seen.waiting("controller", "rollouts to start");
    },
    answer_introspection(seen),
  };
}

double steady() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

} // namespace

TEST_CASE("introspection: an actor answers the one request, and leaves the board when it ends") {
  test_config config;
  config.board()->set_node("node-a");
  caf::actor_system system{config};
  caf::scoped_actor self{system};
  auto w = self->spawn(worker, "generator-0", 0.0);
  actor_snapshot s;
  self->request(w, within(test::patience_s), inspect_atom::value)
    .receive([&](const actor_snapshot& got) { s = got; }, [](const caf::error&) {});
  CHECK(s.kind == "generator");
  CHECK(s.name == "generator-0");
  CHECK(s.node == "node-a");
  CHECK(s.waits_for == "controller");
  CHECK(s.reason == "rollouts to start");
  CHECK(config.board()->snapshots(steady()).size() == 1);
  self->send_exit(w, caf::exit_reason::kill);
  self->wait_for(w);
  CHECK(comes_true([&] { return config.board()->snapshots(steady()).empty(); }));
}

TEST_CASE("introspection: a busy actor is seen at once, with its age and its silence") {
  test_config config;
  caf::actor_system system{config};
  caf::scoped_actor self{system};
  auto tree = std::make_shared<node_tree>(config.board());
  auto process = std::make_shared<process_presence>(*config.board(), steady());
  introspector_options o;
  o.every_s = 0.05;
  auto speaker = self->spawn(introspector_actor, o, tree, process);
  auto w = self->spawn<caf::detached>(worker, "generator-0", 3.0);
  self->send(w, tick_atom::value);
  for (int i = 0; i < 50; ++i)
    self->send(w, tick_atom::value);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::vector<actor_snapshot> all;
  self->request(speaker, within(test::patience_s), inspect_atom::value)
    .receive([&](std::vector<actor_snapshot>& got) { all = std::move(got); }, [](const caf::error&) {});
  REQUIRE(all.size() == 2);
  CHECK(all[0].kind == "process");
  CHECK(all[1].state == "decoding");
  CHECK(all[1].since > 0.3);
  CHECK(all[1].silent > 0.3);
  CHECK(all[1].counters[0].value == 7);
  CHECK(comes_true([&] { return config.board()->snapshots(steady())[1].mailbox >= 40; }));
  for (auto& a : {w, speaker})
    self->send_exit(a, caf::exit_reason::kill);
}

TEST_CASE("introspection: the tree holds all nodes; one that is stuck or gone is said to be") {
  test_config here, there;
  there.board()->set_node("node-b");
  caf::actor_system system{here};
  caf::scoped_actor self{system};
  auto theirs = there.board()->add("reward", "reward-0", steady());
  auto theirs_process = std::make_shared<process_presence>(*there.board(), steady());
  introspector_options o;
  o.every_s = 0.05;
  o.answer_s = 0.2;
  o.forget_s = 1;
  auto tree = std::make_shared<node_tree>(here.board());
  auto speaker = self->spawn(introspector_actor, o, tree,
                             std::make_shared<process_presence>(*here.board(), steady()));
  auto far = self->spawn(introspector_actor, o, std::make_shared<node_tree>(there.board()), theirs_process);
  struct nobody {};
  auto deaf = self->spawn([](caf::event_based_actor* me) -> caf::behavior {
    me->set_default_handler(caf::skip);
    return {[](tick_atom) {}};
  });
  self->send(speaker, node_joined_atom::value, std::string("node-b"), far);
  self->send(speaker, node_joined_atom::value, std::string("node-c"), deaf);
  auto of = [&](const std::string& node) {
    std::vector<actor_snapshot> out;
    self->request(speaker, within(test::patience_s), inspect_atom::value, all_atom::value)
      .receive(
        [&](const std::vector<actor_snapshot>& got) {
          for (const auto& a : got)
            if (a.node == node)
              out.push_back(a);
        },
        [](const caf::error&) {});
    return out;
  };
  CHECK(comes_true([&] { return of("node-b").size() == 2; }));
  CHECK(of("node-b")[0].name == "reward-0");
  CHECK(of("local").size() == 1);
  REQUIRE(of("node-c").size() == 1);
  CHECK(of("node-c")[0].state == "starting");
  auto later = tree->all(steady() + 30); // as if nobody answered from now on
  for (const auto& a : later) {
    if (a.node == "node-b" && a.kind == "process")
      CHECK(a.state == "no answer");
    if (a.node == "node-b" && a.kind == "reward")
      CHECK(a.silent > 29);
  }
  self->send_exit(far, caf::exit_reason::kill);
  self->wait_for(far);
  CHECK(of("node-b").size() == 2); // its last answer stays for a while
  CHECK(comes_true([&] { return of("node-b").empty(); }));
  for (auto& a : {speaker, deaf})
    self->send_exit(a, caf::exit_reason::kill);
}

TEST_CASE("introspection: without a board actors keep their metrics to themselves") {
  struct plain : caf::actor_system_config {
    plain() { millrace::add_message_types(*this); }
  } config;
  caf::actor_system system{config};
  caf::scoped_actor self{system};
  auto w = self->spawn(worker, "generator-0", 0.0);
  self->request(w, within(test::patience_s), inspect_atom::value)
    .receive([](const actor_snapshot& s) { CHECK(s.counters.size() > 0); },
             [](const caf::error&) { CHECK(false); });
  self->send_exit(w, caf::exit_reason::kill);
}
