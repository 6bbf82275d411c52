#include "rollout/controller.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <random>

using namespace millrace;
using enum rollout_state;

namespace {

class counting_feed : public prompt_feed {
public:
  fed_prompt next() override {
    auto id = next_++;
    return {{id, "p" + std::to_string(id), "a"}, {1, 2, 3}};
  }
  nlohmann::json cursor() const override { return next_; }
  void seek(const nlohmann::json& c) override { next_ = c.get<std::int64_t>(); }

private:
  std::int64_t next_ = 0;
};

controller_options options(std::int64_t b, std::int32_t eta, std::int32_t n) {
  controller_options o;
  o.limits = {1000, b, eta};
  o.group_size = n;
  o.sampling.max_tokens = 8;
  return o;
}

rollout answer(const generation_task& t, version v, int tokens = 2) {
  auto r = t.so_far;
  for (int i = 0; i < tokens; ++i) {
    r.tokens.push_back(5);
    r.behaviour_logp.push_back(-0.5F);
    r.versions.push_back(v.value);
  }
  r.finish = finish_reason::stop;
  return r;
}

} // namespace

TEST_CASE("controller: one step of synchronous training, and the budget until it is published") {
  counting_feed feed;
  rollout_controller c(options(4, 0, 2), feed);
  CHECK(c.take_actions().empty()); // no generator yet
  CHECK(c.waits_for().find("acknowledged v0") != std::string::npos);
  auto g = c.generator_up("gen0", 100);
  CHECK(c.take_actions().empty()); // up, but its weights are not proven
  c.generator_acknowledged(g, {0});
  auto a = c.take_actions();
  REQUIRE(a.assign.size() == 4);
  CHECK(c.totals().count(running) == 4);
  for (auto& x : a.assign)
    c.finished(answer(x.task, {0}));
  a = c.take_actions();
  REQUIRE(a.score.size() == 4);
  for (auto& s : a.score)
    c.scored({s.id, 1.0F, true});
  a = c.take_actions();
  REQUIRE(a.deliver.size() == 2);
  CHECK(a.assign.empty()); // η = 0: nothing starts before the next version
  auto reply = c.claim({{0}, {0, 1}, {}});
  CHECK(reply.granted == std::vector<std::int64_t>{0, 1});
  CHECK(c.take_actions().empty());
  c.published({1});
  CHECK(c.totals().count(trained) == 4);
  CHECK(c.take_actions().empty()); // the generator still samples with v0
  c.generator_acknowledged(g, {1});
  CHECK(c.take_actions().assign.size() == 4);
}

TEST_CASE("controller: a dead generator's rollouts go on elsewhere, with their tokens") {
  counting_feed feed;
  rollout_controller c(options(2, 0, 2), feed);
  auto g0 = c.generator_up("gen0", 100);
  c.generator_acknowledged(g0, {0});
  auto a = c.take_actions();
  REQUIRE(a.assign.size() == 2);
  auto partial = answer(a.assign[0].task, {0}, 1);
  partial.finish = finish_reason::none;
  c.progress(partial);
  c.generator_down(g0);
  auto g1 = c.generator_up("gen1", 100);
  c.generator_acknowledged(g1, {0});
  auto b = c.take_actions();
  REQUIRE(b.assign.size() == 2);
  CHECK(b.assign[0].generator == g1);
  CHECK(b.assign[0].task.so_far.generated() == 1);
  CHECK(b.assign[0].task.so_far.attempt == 1);
  CHECK(b.assign[1].task.so_far.generated() == 0);
  CHECK(c.totals().balanced());
  // A finish from the dead one's mailbox still counts, and the other is told to stop.
  c.finished(answer(a.assign[1].task, {0}));
  auto d = c.take_actions();
  REQUIRE(d.cancel.size() == 1);
  CHECK(d.score.size() == 1);
}

TEST_CASE("controller: a generator that leaves costs its rollouts no attempt, and gets no more") {
  counting_feed feed;
  auto o = options(2, 0, 2);
  o.max_attempts = 1;
  rollout_controller c(o, feed);
  c.generator_acknowledged(c.generator_up("gen0", 100), {0});
  auto a = c.take_actions();
  REQUIRE(a.assign.size() == 2);
  auto partial = answer(a.assign[0].task, {0}, 1);
  partial.finish = finish_reason::none;
  c.progress(partial);
  c.generator_left("gen0");
  c.generator_left("nobody");
  CHECK(c.take_actions().assign.empty());
  auto g1 = c.generator_up("gen1", 100);
  c.generator_acknowledged(g1, {0});
  auto b = c.take_actions();
  REQUIRE(b.assign.size() == 2);
  CHECK(b.assign[0].generator == g1);
  CHECK(b.assign[0].task.so_far.generated() == 1);
  CHECK(c.totals().count(failed) == 0);
  CHECK(c.totals().balanced());
}

TEST_CASE("controller: beyond its attempts a rollout fails and its group is closed") {
  counting_feed feed;
  auto o = options(2, 0, 2);
  o.max_attempts = 2;
  rollout_controller c(o, feed);
  auto g = c.generator_up("gen0", 100);
  c.generator_acknowledged(g, {0});
  auto a = c.take_actions();
  c.generation_failed(a.assign[0].task.so_far.id, 0, "out of memory");
  a = c.take_actions();
  REQUIRE(a.assign.size() == 1);
  c.generation_failed(a.assign[0].task.so_far.id, 1, "out of memory");
  CHECK(c.totals().count(failed) == 1);
  CHECK(c.totals().count(dropped) == 1);
  CHECK(c.totals().reasons.at("failed: out of memory") == 1);
  a = c.take_actions();
  CHECK(a.cancel.size() == 1);
  CHECK(a.assign.size() == 2); // refunded: the next prompt takes their place
}

TEST_CASE("ledger: however many reasons there are, it keeps a bounded number, and every count") {
  ledger l;
  for (std::int64_t i = 0; i < 5000; ++i) {
    l.admit({i, 0});
    l.move({i, 0}, failed, "judge.py: error " + std::to_string(i));
    l.forget(i);
  }
  std::int64_t sum = 0;
  for (const auto& [reason, count] : l.totals().reasons)
    sum += count;
  CHECK(sum == 5000);
  CHECK(l.totals().reasons.size() <= 510);
  CHECK(l.totals().reasons.at("failed: other") >= 4490);
}

TEST_CASE("controller: second copies of every event change nothing") {
  counting_feed feed;
  rollout_controller c(options(2, 1, 1), feed);
  auto g = c.generator_up("gen0", 100);
  c.generator_acknowledged(g, {0});
  auto a = c.take_actions();
  REQUIRE(a.assign.size() == 4);
  auto r = answer(a.assign[0].task, {0});
  c.finished(r);
  c.finished(r);
  CHECK(c.take_actions().score.size() == 1);
  c.scored({r.id, 1.0F, true});
  c.scored({r.id, 0.0F, false});
  auto d = c.take_actions();
  REQUIRE(d.deliver.size() == 1);
  CHECK(d.deliver[0].rollouts[0].reward == 1.0F);
  CHECK(c.claim({{0}, {0}, {}}).granted.size() == 1);
  CHECK(c.claim({{0}, {0}, {}}).granted.size() == 1);
  c.published({1});
  c.published({1});
  CHECK(c.claim({{1}, {0}, {}}).granted.empty()); // trained already: never again
  CHECK(c.claim({{0}, {1}, {}}).granted.empty()); // an older version may claim nothing
  CHECK(c.totals().count(trained) == 1);
}

TEST_CASE("controller: a saved stream goes on, everything in flight admitted anew") {
  counting_feed feed;
  rollout_controller c(options(4, 1, 2), feed);
  auto g = c.generator_up("gen0", 100);
  c.generator_acknowledged(g, {0});
  auto a = c.take_actions();
  for (int i = 0; i < 4; ++i)
    c.finished(answer(a.assign[static_cast<std::size_t>(i)].task, {0}));
  auto saved = c.save();
  counting_feed feed2;
  rollout_controller d(options(4, 1, 2), feed2);
  d.load(nlohmann::json::parse(saved.dump()));
  CHECK(d.totals().balanced());
  CHECK(d.totals().admitted == c.totals().admitted);
  CHECK(d.totals().count(running) == 8);
  auto h = d.generator_up("gen0", 100);
  d.generator_acknowledged(h, {0});
  auto b = d.take_actions();
  REQUIRE(b.assign.size() == 8);
  CHECK(b.assign[7].task.so_far.id == a.assign[7].task.so_far.id);
  CHECK(b.assign[7].task.sampling.seed == a.assign[7].task.sampling.seed);
}

TEST_CASE("controller: random events keep the ledger balanced and the budget held") {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    counting_feed feed;
    auto o = options(4, static_cast<std::int32_t>(random() % 4), 2);
    o.limits.max_concurrent = 1 + static_cast<std::int64_t>(random() % 20);
    o.filter_zero_variance = random() % 2 == 0;
    rollout_controller c(o, feed);
    std::vector<std::size_t> up{c.generator_up("a", 6), c.generator_up("b", 6)};
    for (auto g : up)
      c.generator_acknowledged(g, {0});
    std::vector<generation_task> tasks;
    std::vector<score_request> scores;
    std::vector<std::int64_t> groups;
    double now = 0;
    auto pick = [&](auto& from) {
      auto i = random() % from.size();
      auto x = from[i];
      if (random() % 8 != 0) // sometimes it stays, and comes twice
        from.erase(from.begin() + static_cast<std::ptrdiff_t>(i));
      return x;
    };
    for (int step = 0; step < 400; ++step) {
      auto a = c.take_actions();
      for (auto& x : a.assign)
        tasks.push_back(x.task);
      for (auto& x : a.score)
        scores.push_back(x);
      for (auto& x : a.deliver)
        groups.push_back(x.group);
      switch (random() % 9) {
        case 0:
        case 1:
        case 2:
          if (!tasks.empty())
            c.finished(answer(pick(tasks), c.published_version()));
          break;
        case 3:
        case 4:
          if (!scores.empty())
            c.scored({pick(scores).id, static_cast<float>(random() % 2), false});
          break;
        case 5:
          if (!groups.empty()) {
            auto g = pick(groups);
            auto drop = random() % 5 == 0;
            c.claim({c.published_version(), drop ? std::vector<std::int64_t>{} : std::vector{g},
                     drop ? std::vector{g} : std::vector<std::int64_t>{}});
          }
          break;
        case 6: {
          auto v = c.published_version().next();
          c.published(v);
          for (auto g : up)
            c.generator_acknowledged(g, v);
          break;
        }
        case 7:
          c.generator_down(up[0]);
          c.generator_up("a", 6);
          c.generator_acknowledged(up[0], c.published_version());
          break;
        default:
          if (!scores.empty())
            c.scoring_failed(pick(scores).id, "time-out");
          c.tick(now += 100);
      }
      REQUIRE(c.totals().balanced());
      REQUIRE(c.load().outstanding() <= (o.limits.eta + 1) * o.limits.batch_size);
      REQUIRE(c.load().running <= o.limits.max_concurrent);
      for (const auto& g : c.generators()) {
        REQUIRE(g.rollouts >= 0);
        REQUIRE(g.rollouts <= g.capacity);
        REQUIRE(g.tokens >= 0);
      }
    }
  }
}
