// A plugin's actor in front of the replay buffer, with the real controller.

#include "actors/controller_actor.hpp"
#include "actors/plugin_actor.hpp"
#include "actors/reward_actor.hpp"
#include "actors/shell.hpp"
#include "actors/stream_config.hpp"
#include "runtime/error.hpp"
#include "runtime/metrics/exposition.hpp"
#include "test/finished_rollout.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <fstream>
#include <set>

using namespace millrace;
using Catch::Matchers::Contains;

namespace {

class counting_feed final : public prompt_feed {
public:
  fed_prompt next() override {
    auto n = next_++;
    return {{n, std::to_string(n), "a"}, {1}};
  }
  [[nodiscard]] nlohmann::json cursor() const override { return next_; }
  void seek(const nlohmann::json& cursor) override { next_ = cursor.get<std::int64_t>(); }

private:
  std::int64_t next_ = 0;
};

/// In every third group all answers are the same; in every tenth one can't be judged.
class pay final : public reward {
public:
  [[nodiscard]] verdict judge(const prompt& q, std::string_view answer,
                              finish_reason) const override {
    verdict v{static_cast<float>(answer.size()), true, true, {}, {}};
    if (q.id % 10 == 9)
      v.failure = "program judge.py: its process exited with status 3";
    return v;
  }
};

/// Answers at once.
caf::behavior quick_generator(caf::event_based_actor* self, caf::actor controller) {
  insist(self, controller, 1,
         caf::make_message(generator_joined_atom::value, std::string("generator-0"), std::int64_t{64},
                           version{0}, caf::actor{self}));
  return {
    [=](assign_tasks& tasks) {
      rollouts_finished done;
      for (auto& t : tasks.tasks) {
        auto r = test::finished(std::move(t));
        r.text = r.prompt_id % 3 == 0 ? "same" : "answer " + std::string(r.id.sample, 'x');
        done.rollouts.push_back(std::move(r));
      }
      self->send(controller, std::move(done));
    },
    [](const cancel_rollouts&) {},
  };
}

struct outcome {
  std::set<std::int64_t> delivered;
  nlohmann::json totals;
  actor_snapshot plugin;
};

plugins::registered<plugin::actor_factory> kind(const std::string& file, const std::string& name) {
  auto p = plugins::load(PLUGINS "/lib" + file + ".so");
  declare_plugin_actor(name);
  return p.actors.at(name);
}

/// Runs 10 groups of 4 through; the buffer is the test.
outcome run(const plugins::registered<plugin::actor_factory>& made_by, const nlohmann::json& params,
            const std::string& folder) {
  stream_config config;
  config.show_on(std::make_shared<snapshot_board>());
  caf::actor_system system{config};
  outcome out;
  {
    caf::scoped_actor self{system};
    controller_actor_options o;
    o.controller.limits = {64, 20, 1};
    o.controller.group_size = 4;
    o.controller.max_attempts = 2;
    o.reward_timeout_s = 5;
    auto controller = self->spawn(controller_actor, o, std::make_shared<counting_feed>());
    auto recorder = self->spawn([]() -> caf::behavior { return {[](filter_atom, const caf::actor&) {}}; });
    plugin_actor_options po;
    po.name = made_by.from.name + "-0";
    po.where = "actors[0].params";
    po.params = params;
    po.run_directory = folder;
    auto filter = self->spawn<caf::detached>(plugin_actor, made_by, po, controller, recorder);
    // It has joined before the first group is there.
    self->request(filter, within(test::patience_s), inspect_atom::value)
      .receive([](const actor_snapshot&) {}, [](const caf::error&) {});
    self->request(controller, within(test::patience_s), filter_atom::value, po.name, filter)
      .receive([] {}, [](const caf::error&) {});
    self->request(controller, within(test::patience_s), replay_joined_atom::value, caf::actor{self})
      .receive([] {}, [](const caf::error&) {});
    auto judge = self->spawn(reward_actor, "reward-0", std::make_shared<pay>(), controller);
    auto generator = self->spawn(quick_generator, controller);
    const auto all = [&] {
      const auto& t = out.totals;
      return t.is_object() && t.value("running", 1) + t.value("scoring", 1) + t.value("scored", 1) == 0
             && t.value("admitted", 0) >= 40 && out.delivered.size() * 4 == t.value("buffered", 0U);
    };
    test::comes_true([&] {
      self->receive([&](const buffer_groups& g) {
        for (const auto& x : g.groups)
          out.delivered.insert(x.group);
      }, [](const in_flight_query&) {}, caf::after(std::chrono::milliseconds(20)) >> [] {});
      self->request(controller, within(test::patience_s), totals_atom::value)
        .receive([&](const std::string& t) { out.totals = nlohmann::json::parse(t); },
                 [](const caf::error&) {});
      return all();
    });
    self->send(filter, step_report{{0}, {1}, {{"loss", 0.5}}, {}});
    self->request(filter, within(test::patience_s), inspect_atom::value)
      .receive([&](const actor_snapshot& s) { out.plugin = s; }, [](const caf::error&) {});
    for (const auto& a : {filter, judge, generator, controller, recorder})
      self->send_exit(a, caf::exit_reason::user_shutdown);
    self->wait_for(filter, judge, generator, controller);
  }
  return out;
}

double figure(const actor_snapshot& s, const std::string& name) {
  for (const auto* list : {&s.counters, &s.gauges})
    for (const auto& v : *list)
      if (v.name == name)
        return v.value;
  return -1;
}

} // namespace

TEST_CASE("plugin actor: its verdict filters groups with a reason, and its metrics are shown") {
  auto folder = std::filesystem::temp_directory_path() / "millrace-plugin-actor";
  std::filesystem::create_directories(folder);
  auto out = run(kind("actor", "duplicates"), {{"share", 0.9}}, folder);
  INFO(out.totals.dump());
  const auto& reasons = out.totals["reasons"];
  REQUIRE(out.totals["balanced"] == true);
  const auto filtered = out.totals["filtered"].get<int>();
  REQUIRE(filtered > 0);
  REQUIRE(reasons["filtered: duplicates: answers are the same"] == filtered);
  for (auto g : out.delivered) {
    REQUIRE(g % 3 != 0);
    REQUIRE(g % 10 != 9);
  }
  // Group 9 is one of both kinds; what can't be judged fails with the reason and takes its siblings.
  REQUIRE(out.totals["failed"].get<int>() > 0);
  REQUIRE(reasons["failed: program judge.py: its process exited with status 3"]
          == out.totals["failed"]);
  REQUIRE(out.plugin.kind == "duplicates");
  REQUIRE(figure(out.plugin, "millrace_duplicates_groups_vetoed_total") == filtered / 4);
  REQUIRE(figure(out.plugin, "millrace_duplicates_answers_total")
          == 4 * figure(out.plugin, "millrace_duplicates_groups_shown_total"));
  REQUIRE(figure(out.plugin, "millrace_duplicates_largest_share") > 0);
  REQUIRE_THAT(prometheus_text({&out.plugin, 1}),
               Contains("# HELP millrace_duplicates_answers_total Answers that were compared"));
  std::ifstream file(folder / "groups.jsonl");
  std::string line;
  REQUIRE(std::getline(file, line));
  REQUIRE(nlohmann::json::parse(line)["answers"] == 4);
  std::filesystem::remove_all(folder);
}

TEST_CASE("plugin actor: one that throws at every group costs nothing but a count") {
  auto out = run(kind("throwing", "grumpy"), {}, ".");
  REQUIRE(out.totals["filtered"] == 0);
  REQUIRE(!out.delivered.empty());
  REQUIRE(figure(out.plugin, "millrace_grumpy_exceptions_total")
          == static_cast<double>(out.delivered.size()));
}

TEST_CASE("plugin actor: a factory that refuses its parameters ends it with the reason") {
  stream_config config;
  caf::actor_system system{config};
  caf::scoped_actor self{system};
  plugin_actor_options o;
  o.where = "actors[0].params";
  o.params = {{"share", 7}};
  o.run_directory = "/tmp";
  const auto made_by = kind("actor", "duplicates");
  std::string why;
  try {
    auto a = self->spawn<caf::monitored>(plugin_actor, made_by, o, caf::actor{self}, caf::actor{self});
    self->receive([&](const caf::down_msg& down) { why = text_of(down.reason, system); },
                  caf::after(test::patience) >> [] {});
  } catch (const std::exception& e) {
    why = e.what();
  }
  REQUIRE_THAT(why, Contains("actor \"duplicates\"")
                      && Contains("actors[0].params.share: found 7, expected above 0"));
}
