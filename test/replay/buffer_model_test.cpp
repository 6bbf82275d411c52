// The buffer against a model of a few lines that keeps everything in one list and looks at all of
// it each time, under random operations.

#include "replay/buffer.hpp"

#include "runtime/error.hpp"
#include "test/replay/sample_groups.hpp"

#include <algorithm>
#include <optional>
#include <set>

using namespace millrace;
using state = hand_out_result::state;

namespace {

struct model {
  buffer_options o;
  std::vector<scored_group> waiting, out;
  std::optional<version> out_for;
  version last_confirmed = no_version;
  std::set<std::int64_t> known;
  std::int64_t inserted = 0, trained = 0, dropped = 0;

  static std::int32_t oldest(const scored_group& g) {
    std::int32_t v = g.rollouts[0].oldest().value;
    for (const auto& r : g.rollouts)
      v = std::min(v, r.oldest().value);
    return v;
  }
  static std::int32_t youngest(const scored_group& g) {
    std::int32_t v = -1;
    for (const auto& r : g.rollouts)
      v = std::max(v, r.youngest().value);
    return v;
  }
  static std::int64_t count(const std::vector<scored_group>& groups) {
    std::int64_t n = 0;
    for (const auto& g : groups)
      n += static_cast<std::int64_t>(g.rollouts.size());
    return n;
  }
  bool insert(const scored_group& g) {
    const auto n = static_cast<std::int64_t>(g.rollouts.size());
    if (known.contains(g.group) || count(waiting) + count(out) + n > o.capacity)
      return false;
    known.insert(g.group);
    waiting.push_back(g);
    inserted += n;
    return true;
  }
  void remove(std::int64_t id) {
    auto it = std::find_if(waiting.begin(), waiting.end(), [&](auto& g) { return g.group == id; });
    dropped += static_cast<std::int64_t>(it->rollouts.size());
    waiting.erase(it);
  }
  bool hand_out(version from) {
    const auto bound = from.value - o.eta;
    auto must_go = [&](const scored_group& g) {
      return o.over_bound == over_bound::drop ? oldest(g) < bound : youngest(g) < bound;
    };
    auto all = waiting;
    for (const auto& g : all)
      if (must_go(g))
        remove(g.group);
    if (count(waiting) + o.group_size <= o.batch_size)
      return false;
    std::sort(waiting.begin(), waiting.end(), [](const auto& a, const auto& b) {
      return std::pair(oldest(a), a.group) < std::pair(oldest(b), b.group);
    });
    while (!waiting.empty()
           && count(out) + static_cast<std::int64_t>(waiting[0].rollouts.size()) <= o.batch_size) {
      out.push_back(waiting[0]);
      waiting.erase(waiting.begin());
    }
    out_for = from;
    return true;
  }
  void take_back() {
    waiting.insert(waiting.end(), out.begin(), out.end());
    out.clear();
    out_for.reset();
  }
  void confirm() {
    trained += count(out);
    last_confirmed = *out_for;
    out.clear();
    out_for.reset();
  }
};

void require_same(const replay_buffer& b, const model& m) {
  REQUIRE(b.depth() == model::count(m.waiting));
  REQUIRE(b.in_training() == model::count(m.out));
  const auto& c = b.counters();
  REQUIRE(c.inserted == m.inserted);
  REQUIRE(c.confirmed == m.trained);
  REQUIRE(c.dropped == m.dropped);
  REQUIRE(c.inserted == b.depth() + b.in_training() + c.confirmed + c.dropped);
  if (m.out_for) {
    REQUIRE(b.batch_out()->groups.size() == m.out.size());
    for (std::size_t i = 0; i < m.out.size(); ++i)
      REQUIRE(b.batch_out()->groups[i]->group == m.out[i].group);
  }
}

/// Every token that η forbids is named, and no other.
void require_masks(const training_batch& batch, std::int32_t eta) {
  std::set<std::pair<rollout_id, std::int32_t>> masked;
  for (const auto& m : batch.masked)
    for (auto s : m.spans)
      for (auto t = s.begin; t < s.end; ++t)
        masked.insert({m.id, t});
  REQUIRE(static_cast<std::int64_t>(masked.size()) == batch.masked_tokens);
  std::size_t expected = 0;
  for (const auto& g : batch.groups)
    for (const auto& r : g->rollouts)
      for (std::size_t t = 0; t < r.versions.size(); ++t)
        if (r.versions[t] >= 0 && staleness(batch.from, {r.versions[t]}) > eta) {
          ++expected;
          REQUIRE(masked.contains({r.id, static_cast<std::int32_t>(t)}));
        }
  REQUIRE(expected == masked.size());
  for (auto [s, n] : staleness_of(batch).head)
    REQUIRE(s <= eta);
}

void run(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  auto below = [&](std::int64_t k) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(k));
  };
  buffer_options o;
  o.group_size = 1 + below(4);
  o.batch_size = o.group_size * (1 + below(4)) + (below(4) == 0 ? below(o.group_size) : 0);
  o.eta = below(5);
  o.over_bound = static_cast<over_bound>(below(3));
  o.capacity = (o.eta + 1) * o.batch_size + below(10);
  replay_buffer b(o);
  model m{o};
  version v{0};
  std::int64_t next = 0;
  for (int step = 0; step < 400; ++step) {
    const auto what = below(20);
    if (what < 11) {
      const auto id = below(6) == 0 && next > 0 ? below(next) : next++;
      const auto full = static_cast<std::int32_t>(o.group_size);
      const auto n = below(5) == 0 ? 1 + below(full) : full;
      const auto g = random_group(random, id, n, v.value, o.eta + 2);
      REQUIRE((b.insert(g) == insert_result::inserted) == m.insert(g));
    } else if (what < 15) {
      const auto r = b.hand_out(v);
      if (!m.out_for)
        REQUIRE((r.what == state::ready) == m.hand_out(v));
      else
        REQUIRE(r.what == (*m.out_for == v ? state::ready : state::unconfirmed));
      if (r.what == state::ready)
        require_masks(*r.batch, o.eta);
    } else if (what < 18) {
      if (m.out_for) {
        REQUIRE(b.confirmed(*m.out_for));
        v = m.out_for->next();
        m.confirm();
      }
    } else if (what == 18) {
      REQUIRE(b.take_back() == m.out_for.has_value());
      m.take_back();
    } else {
      b = replay_buffer::restore(o, b.snapshot(), "test");
    }
    require_same(b, m);
  }
}

} // namespace

TEST_CASE("buffer: random operations agree with the model") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    run(seed);
  }
}

TEST_CASE("buffer: a damaged snapshot is refused, whichever byte is wrong") {
  std::mt19937_64 random(1);
  const buffer_options o{.capacity = 100, .batch_size = 4, .group_size = 2, .eta = 2};
  replay_buffer b(o);
  for (std::int64_t g = 0; g < 5; ++g)
    b.insert(random_group(random, g, 2, 3, 2));
  b.hand_out({3});
  const auto bytes = b.snapshot();
  REQUIRE(replay_buffer::restore(o, bytes, "test").snapshot() == bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto bad = bytes;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    REQUIRE_THROWS_AS(replay_buffer::restore(o, bad, "test"), user_error);
    REQUIRE_THROWS_AS(replay_buffer::restore(o, bytes.substr(0, i), "test"), user_error);
  }
}

TEST_CASE("buffer: a smaller η at resume masks what the batch that is out has beyond it") {
  const buffer_options four{.capacity = 100, .batch_size = 2, .group_size = 2, .eta = 4};
  replay_buffer b(four);
  b.insert(make_group(0, {{1, 3}, {5, 5}}));
  REQUIRE(b.hand_out({5}).batch->masked_tokens == 0);
  auto one = four;
  one.eta = 1;
  auto resumed = replay_buffer::restore(one, b.snapshot(), "test");
  REQUIRE(resumed.hand_out({5}).batch->masked_tokens == 2);
}
