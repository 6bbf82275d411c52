#include "replay/buffer.hpp"

#include "runtime/error.hpp"
#include "test/replay/sample_groups.hpp"

using namespace millrace;
using state = hand_out_result::state;

namespace {

buffer_options options(std::int64_t b, std::int64_t n, std::int32_t eta, over_bound how,
                       std::int64_t capacity = 1000) {
  return {.capacity = capacity, .batch_size = b, .group_size = n, .eta = eta, .over_bound = how};
}

std::vector<std::int64_t> ids(const training_batch& batch) {
  std::vector<std::int64_t> out;
  for (const auto& g : batch.groups)
    out.push_back(g->group);
  return out;
}

using list = std::vector<std::int64_t>;

} // namespace

TEST_CASE("buffer: the oldest token decides the order, then the id") {
  replay_buffer b(options(4, 2, 10, over_bound::mask));
  b.insert(make_group(7, {{5, 5}, {4, 5}}));
  b.insert(make_group(3, {{5, 5}, {5, 6}}));
  b.insert(make_group(9, {{6, 6}, {2, 6}}));
  b.insert(make_group(1, {{5, 5}, {5, 5}}));
  REQUIRE(b.waiting_groups() == list{9, 7, 1, 3});
  auto r = b.hand_out({6});
  REQUIRE(r.what == state::ready);
  REQUIRE(ids(*r.batch) == list{9, 7});
  REQUIRE(b.depth() == 4);
  REQUIRE(b.in_training() == 4);
}

TEST_CASE("buffer: a full one refuses and says so, and takes the group after a confirmation") {
  replay_buffer b(options(4, 2, 4, over_bound::mask, 4));
  REQUIRE(b.insert(uniform_group(0, 2, 0)) == insert_result::inserted);
  REQUIRE(b.insert(uniform_group(1, 2, 0)) == insert_result::inserted);
  REQUIRE(b.insert(uniform_group(2, 2, 0)) == insert_result::full);
  REQUIRE(b.hand_out({0}).what == state::ready);
  REQUIRE(b.insert(uniform_group(2, 2, 0)) == insert_result::full); // what is out counts
  REQUIRE(b.confirmed({0}));
  REQUIRE(b.insert(uniform_group(2, 2, 0)) == insert_result::inserted);
  REQUIRE(b.counters().refused == 2);
  REQUIRE(b.room() == 2);
}

TEST_CASE("buffer: a group is taken once, whatever became of it") {
  replay_buffer b(options(2, 2, 0, over_bound::drop));
  b.insert(uniform_group(0, 2, 0));
  REQUIRE(b.insert(uniform_group(0, 2, 0)) == insert_result::already_known);
  b.hand_out({0});
  REQUIRE(b.insert(uniform_group(0, 2, 0)) == insert_result::already_known);
  b.confirmed({0});
  REQUIRE(b.insert(uniform_group(0, 2, 0)) == insert_result::already_known);
  b.insert(uniform_group(1, 2, 0));
  REQUIRE(b.hand_out({1}).dropped == list{1});
  REQUIRE(b.insert(uniform_group(1, 2, 0)) == insert_result::already_known);
  REQUIRE(b.counters().already_known == 4);
}

TEST_CASE("buffer: the batch of a version stays the same until it is confirmed") {
  replay_buffer b(options(2, 2, 4, over_bound::mask));
  b.insert(uniform_group(5, 2, 1));
  auto first = b.hand_out({1});
  b.insert(uniform_group(4, 2, 0)); // older, but late
  REQUIRE(b.hand_out({1}).batch == first.batch);
  REQUIRE(b.hand_out({2}).what == state::unconfirmed);
  REQUIRE_FALSE(b.confirmed({2}));
  REQUIRE_FALSE(b.confirmed({0}));
  REQUIRE(b.confirmed({1}));
  REQUIRE(b.confirmed({1})); // it is, whoever asks again
  REQUIRE(b.hand_out({1}).what == state::outdated);
  REQUIRE(ids(*b.hand_out({2}).batch) == list{4});
}

TEST_CASE("buffer: batches are whole groups") {
  replay_buffer b(options(8, 3, 4, over_bound::mask, 8));
  b.insert(uniform_group(0, 3, 0));
  auto r = b.hand_out({0});
  REQUIRE(r.what == state::too_few);
  REQUIRE(r.missing == 3);
  b.insert(uniform_group(1, 3, 0));
  REQUIRE(b.insert(uniform_group(2, 3, 0)) == insert_result::full); // 9 > 8: and yet no deadlock
  r = b.hand_out({0});
  REQUIRE(r.what == state::ready);
  REQUIRE(r.batch->rollouts == 6);
}

TEST_CASE("buffer: mask names the tokens beyond the bound, and drops what has no others") {
  replay_buffer b(options(4, 2, 2, over_bound::mask));
  b.insert(make_group(0, {{2, 3, 4, 5, 3}, {5, 5}}));
  b.insert(make_group(1, {{3, 3}, {4, 4}})); // one rollout without a token left: its sibling stays
  b.insert(make_group(2, {{0, 0}, {1, 3}})); // nothing left
  auto r = b.hand_out({6});
  REQUIRE(r.what == state::ready);
  REQUIRE(r.dropped == list{2});
  REQUIRE(ids(*r.batch) == list{0, 1});
  REQUIRE(r.batch->oldest_trained == version{4});
  REQUIRE(r.batch->masked.size() == 2);
  REQUIRE(r.batch->masked[0].id == rollout_id{0, 0});
  REQUIRE(r.batch->masked[0].spans == std::vector<token_span>{{2, 4}, {6, 7}});
  REQUIRE(r.batch->masked[1].id == rollout_id{1, 0});
  REQUIRE(r.batch->masked[1].spans == std::vector<token_span>{{2, 4}});
  REQUIRE(r.batch->masked_tokens == 5);
  auto h = staleness_of(*r.batch);
  REQUIRE(h.head == std::map<std::int32_t, std::int64_t>{{1, 1}, {2, 2}});
  b.confirmed({6});
  REQUIRE(b.counters().masked == 2);
  REQUIRE(b.counters().masked_tokens == 5);
  REQUIRE(b.counters().dropped == 2);
}

TEST_CASE("buffer: drop takes the whole group, also when it arrives too late") {
  replay_buffer b(options(2, 2, 1, over_bound::drop));
  b.insert(make_group(0, {{5, 5}, {3, 5}}));
  auto r = b.hand_out({5});
  REQUIRE(r.what == state::too_few);
  REQUIRE(r.dropped == list{0});
  b.insert(make_group(1, {{3, 5}, {5, 5}}));
  b.insert(make_group(2, {{4, 5}, {5, 5}}));
  r = b.hand_out({5});
  REQUIRE(r.what == state::ready);
  REQUIRE(r.dropped == list{0, 1}); // told again until the step is confirmed
  REQUIRE(ids(*r.batch) == list{2});
  b.confirmed({5});
  REQUIRE(b.dropped().empty());
  REQUIRE(b.counters().dropped == 4);
}

TEST_CASE("buffer: wait names the rollouts that would exceed the bound at the next step") {
  replay_buffer b(options(4, 2, 2, over_bound::wait));
  b.insert(uniform_group(10, 2, 4));
  b.insert(uniform_group(11, 2, 3));
  const std::vector<in_flight_rollout> running{
    {{5, 1}, {2}}, {{4, 0}, {3}}, {{6, 0}, no_version}, {{3, 0}, {2}}};
  auto r = b.hand_out({4}, running);
  REQUIRE(r.what == state::waiting);
  REQUIRE(r.wait_for == std::vector<rollout_id>{{3, 0}, {5, 1}});
  REQUIRE(b.counters().waits == 1);
  const std::vector<in_flight_rollout> not_yet{{{4, 0}, {3}}};
  REQUIRE(b.hand_out({4}, not_yet).what == state::ready);
  b.take_back();
  // Two groups as old are there: those in flight would not get in.
  b.insert(uniform_group(12, 2, 2));
  b.insert(make_group(13, {{1, 3}, {1, 2}}));
  r = b.hand_out({4}, running);
  REQUIRE(r.what == state::ready);
  REQUIRE(ids(*r.batch) == list{13, 12});
  REQUIRE(r.batch->masked.size() == 2); // what comes late is masked
}

TEST_CASE("buffer: rollouts in which nothing was sampled are dropped") {
  replay_buffer b(options(2, 2, 3, over_bound::mask));
  b.insert(make_group(0, {{}, {}}));
  b.insert(make_group(1, {{}, {0}}));
  auto r = b.hand_out({0});
  REQUIRE(r.dropped == list{0});
  REQUIRE(ids(*r.batch) == list{1});
}

TEST_CASE("buffer: the trainer resumes before, at or after the batch that is out") {
  auto make = [] {
    replay_buffer b(options(2, 2, 4, over_bound::mask));
    b.insert(uniform_group(0, 2, 2));
    b.insert(uniform_group(1, 2, 3));
    b.insert(uniform_group(2, 2, 1));
    b.hand_out({3}); // group 2
    return b;
  };
  auto after = make();
  after.resume({4});
  REQUIRE(after.counters().confirmed == 2);
  REQUIRE(after.hand_out({3}).what == state::outdated);
  REQUIRE(ids(*after.hand_out({4}).batch) == list{0});

  auto same = make();
  same.resume({3});
  REQUIRE(same.counters().confirmed == 0);
  REQUIRE(ids(*same.hand_out({3}).batch) == list{2});

  auto before = make();
  before.resume({1}); // versions 2 and 3 are lost
  auto r = before.hand_out({1});
  REQUIRE(r.dropped == list{0, 1});
  REQUIRE(ids(*r.batch) == list{2});
}

TEST_CASE("buffer: another authority says which groups are in training") {
  replay_buffer b(options(2, 2, 4, over_bound::mask));
  b.insert(uniform_group(0, 2, 0));
  b.insert(uniform_group(1, 2, 1));
  b.hand_out({1});
  REQUIRE(b.adopt({1}, list{1, 8}) == list{8});
  REQUIRE(b.in_training() == 0);
  REQUIRE(b.depth() == 4);
  REQUIRE(b.adopt({1}, list{1}).empty());
  REQUIRE(ids(*b.hand_out({1}).batch) == list{1});
}

TEST_CASE("buffer: options that can't work and broken groups are refused") {
  REQUIRE_THROWS_AS(replay_buffer(options(8, 2, 0, over_bound::mask, 7)), user_error);
  REQUIRE_THROWS_AS(replay_buffer(options(8, 2, 1, over_bound::wait, 15)), user_error);
  REQUIRE_THROWS_AS(replay_buffer(options(2, 4, 1, over_bound::mask)), user_error);
  replay_buffer b(options(4, 2, 0, over_bound::mask));
  REQUIRE_THROWS_AS(b.insert(make_group(0, {})), invariant_error);
  REQUIRE_THROWS_AS(b.insert(uniform_group(0, 3, 0)), invariant_error);
  auto g = uniform_group(0, 2, 0);
  g.rollouts[1].versions.pop_back();
  REQUIRE_THROWS_AS(b.insert(g), invariant_error);
  REQUIRE_FALSE(b.knows(0));
  b.insert(uniform_group(1, 2, 5));
  b.insert(uniform_group(2, 2, 5));
  REQUIRE_THROWS_AS(b.hand_out({4}), invariant_error); // sampled by a version yet to come
}

TEST_CASE("buffer: staleness of what waits") {
  replay_buffer b(options(4, 2, 4, over_bound::mask));
  b.insert(make_group(0, {{1, 2, 3}, {3, 3}}));
  auto h = b.staleness_if_trained({4});
  using counts = std::map<std::int32_t, std::int64_t>;
  REQUIRE(h.head == counts{{1, 1}, {3, 1}});
  REQUIRE(h.tail == counts{{1, 2}});
  REQUIRE(h.span == counts{{0, 1}, {2, 1}});
}
