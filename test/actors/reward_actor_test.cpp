// Reward workers with answers that are slow to judge, or can't be.

#include "actors/controller_actor.hpp"
#include "actors/reward_actor.hpp"
#include "actors/shell.hpp"
#include "actors/stream_config.hpp"
#include "runtime/log.hpp"
#include "test/finished_rollout.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <atomic>
#include <thread>

using namespace millrace;
using Catch::Matchers::Contains;

namespace {

using clock = std::chrono::steady_clock;

/// Takes its time over the first answer: until it is let go on.
class slow final : public reward {
public:
  [[nodiscard]] verdict judge(const prompt&, std::string_view, finish_reason) const override {
    ++judged;
    test::comes_true([this] { return go_on.load(); });
    return {};
  }
  mutable std::atomic<int> judged = 0;
  std::atomic<bool> go_on = false;
};

class broken final : public reward {
public:
  [[nodiscard]] verdict judge(const prompt&, std::string_view, finish_reason) const override {
    verdict v;
    v.judged = false;
    v.failure = "judge.py: \xFF\xFE";
    return v;
  }
};

score_batch answers(std::int64_t n) {
  score_batch out;
  for (std::int64_t i = 0; i < n; ++i)
    out.requests.push_back({rollout_id{i, 0}, {i, "q", "a"}, "text", finish_reason::stop});
  return out;
}

/// Takes whatever joins.
caf::behavior host() {
  return {[](reward_joined_atom, const std::string&, const caf::actor&) {}};
}

class endless_feed final : public prompt_feed {
public:
  fed_prompt next() override { return {{next_, std::to_string(next_++), "a"}, {1}}; }
  [[nodiscard]] nlohmann::json cursor() const override { return next_; }
  void seek(const nlohmann::json& cursor) override { next_ = cursor.get<std::int64_t>(); }

private:
  std::int64_t next_ = 0;
};

} // namespace

TEST_CASE("reward worker: the end of a run does not wait for all that it was sent") {
  stream_config config;
  caf::actor_system system{config};
  caf::scoped_actor self{system};
  auto judge = std::make_shared<slow>();
  auto worker = self->spawn<caf::detached>(reward_actor, "reward-0", judge, self->spawn(host));
  for (int i = 0; i < 4; ++i)
    self->send(worker, answers(32));
  REQUIRE(test::comes_true([&] { return judge->judged > 0; }));
  self->send_exit(worker, caf::exit_reason::user_shutdown);
  judge->go_on = true;
  self->wait_for(worker);
  REQUIRE(judge->judged < 5);
}

TEST_CASE("reward worker: one that is drained judges what it has, in order") {
  stream_config config;
  caf::actor_system system{config};
  caf::scoped_actor self{system};
  auto judge = std::make_shared<slow>();
  auto worker = self->spawn<caf::detached>(reward_actor, "reward-0", judge, self->spawn(host));
  auto first = self->request(worker, within(test::patience_s), answers(3));
  auto second = self->request(worker, within(test::patience_s), answers(2));
  auto none = self->request(worker, within(test::patience_s), answers(0));
  self->send(worker, drain_atom::value);
  judge->go_on = true;
  std::vector<std::size_t> sizes;
  const auto note = [&](const score_results& r) {
    sizes.push_back(r.scores.size());
    for (std::size_t i = 0; i < r.scores.size(); ++i)
      REQUIRE(r.scores[i].id.group == static_cast<std::int64_t>(i));
  };
  const auto fail = [](const caf::error&) { FAIL("it did not answer"); };
  first.receive(note, fail);
  second.receive(note, fail);
  none.receive(note, fail);
  REQUIRE(sizes == std::vector<std::size_t>{3, 2, 0});
  self->wait_for(worker);
}

TEST_CASE("controller: says why nothing can be judged, ever more seldom, and once that it gives up") {
  stream_config config;
  caf::actor_system system{config};
  caf::scoped_actor self{system};
  std::vector<std::string> told, given_up; // by the controller, until it has ended
  auto totals = nlohmann::json::object();
  controller_actor_options o;
  o.controller.limits = {64, 20, 1};
  o.controller.group_size = 2;
  o.controller.max_attempts = 2;
  o.warn = [&](const std::string& text) { told.push_back(text); };
  o.max_failures_at_first = 70;
  o.give_up = [&](const std::string& text) { given_up.push_back(text); };
  auto controller = self->spawn(controller_actor, o, std::make_shared<endless_feed>());
  std::string log; // of the worker, until it has ended
  log::set_screen([&](std::string_view line) { log += line; });
  auto worker = self->spawn(reward_actor, "reward-0", std::make_shared<broken>(), controller);
  self->request(controller, within(test::patience_s), generator_joined_atom::value,
                std::string("generator-0"), std::int64_t{64}, version{0}, caf::actor{self})
    .receive([] {}, [](const caf::error&) {});
  test::comes_true([&] {
    self->receive(
      [&](assign_tasks& tasks) {
        rollouts_finished done;
        for (auto& t : tasks.tasks)
          done.rollouts.push_back(test::finished(std::move(t)));
        self->send(controller, std::move(done));
      },
      [](const cancel_rollouts&) {}, caf::after(std::chrono::milliseconds(20)) >> [] {});
    self->request(controller, within(test::patience_s), totals_atom::value)
      .receive([&](const std::string& t) { totals = nlohmann::json::parse(t); },
               [](const caf::error&) {});
    return totals.value("failed", 0) >= 80;
  });
  self->send_exit(worker, caf::exit_reason::user_shutdown);
  self->send_exit(controller, caf::exit_reason::user_shutdown);
  self->wait_for(worker, controller);
  log::set_screen({});
  REQUIRE_THAT(log, Contains("reward-0 could not judge an answer: judge.py: \xEF\xBF\xBD"));
  REQUIRE(totals["failed"] >= 80);
  REQUIRE(told.size() >= 2);
  REQUIRE(told.size() <= 3);
  REQUIRE_THAT(told[0], Contains("failed 10 times") && Contains("judge.py: \xEF\xBF\xBD"));
  REQUIRE_THAT(told[1], Contains("failed 100 times"));
  REQUIRE(given_up.size() == 1);
  REQUIRE_THAT(given_up[0], Contains("the first 70 failed") && Contains("judge.py: \xEF\xBF\xBD"));
}
