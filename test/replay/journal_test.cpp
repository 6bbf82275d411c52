#include "replay/durable_buffer.hpp"

#include "runtime/error.hpp"
#include "test/replay/sample_groups.hpp"

#include <map>
#include <optional>
#include <set>

using namespace millrace;
using state = hand_out_result::state;
using disk = memory_journal_file::disk;

namespace {

const buffer_options options{.capacity = 40, .batch_size = 4, .group_size = 2, .eta = 2};

durable_buffer open(const std::shared_ptr<disk>& d, journal_options j = {}) {
  return {options, std::make_unique<memory_journal_file>(d), j};
}

std::shared_ptr<disk> disk_of(std::string content) {
  auto d = std::make_shared<disk>();
  d->content = std::move(content);
  return d;
}

/// What must survive a crash.
struct picture {
  std::vector<std::int64_t> waiting, out, dropped;
  std::int32_t from = -1;
  std::vector<bool> known;
  std::int64_t inserted = 0, confirmed = 0, dropped_rollouts = 0, masked_tokens = 0;
  std::vector<std::vector<std::int32_t>> tokens;

  bool operator==(const picture&) const = default;
};

picture picture_of(const replay_buffer& b) {
  picture p;
  p.waiting = b.waiting_groups();
  p.dropped = b.dropped();
  if (b.batch_out()) {
    p.from = b.batch_out()->from.value;
    for (const auto& g : b.batch_out()->groups) {
      p.out.push_back(g->group);
      for (const auto& r : g->rollouts)
        p.tokens.push_back(r.versions);
    }
  }
  for (std::int64_t g = 0; g < 100; ++g)
    p.known.push_back(b.knows(g));
  p.inserted = b.counters().inserted;
  p.confirmed = b.counters().confirmed;
  p.dropped_rollouts = b.counters().dropped;
  p.masked_tokens = b.counters().masked_tokens;
  return p;
}

/// One random operation, as the actors would do it.
void step(durable_buffer& b, std::mt19937_64& random, version& v, std::int64_t& next) {
  const auto what = random() % 12;
  if (what < 6) {
    if (b.insert(random_group(random, next, 2, v.value, 4)) == insert_result::inserted)
      ++next;
  } else if (what < 9) {
    b.hand_out(v);
  } else if (what == 9) {
    if (const auto& out = b.state().batch_out()) {
      v = std::max(v, out->from.next());
      b.confirmed(out->from);
    }
  } else if (what == 10) {
    if (random() % 3 == 0)
      b.take_back();
  } else if (random() % 3 == 0) {
    const auto waiting = b.state().waiting_groups();
    if (!waiting.empty())
      b.drop(std::vector<std::int64_t>{waiting[random() % waiting.size()]});
  }
}

} // namespace

TEST_CASE("journal: the buffer comes back from it") {
  auto d = std::make_shared<disk>();
  picture before;
  {
    auto b = open(d);
    for (std::int64_t g = 0; g < 6; ++g)
      b.insert(make_group(g, {{3, 4}, {static_cast<std::int32_t>(g), 5}}));
    b.hand_out({5});
    before = picture_of(b.state());
  }
  auto b = open(d);
  REQUIRE(picture_of(b.state()) == before);
  REQUIRE(b.recovery().records == 7);
  REQUIRE(b.recovery().cut_bytes == 0);
  auto r = b.hand_out({5});
  REQUIRE(r.what == state::ready);
  REQUIRE(r.batch->masked_tokens == 2); // of versions 0 and 1
  REQUIRE(b.insert(uniform_group(0, 2, 0)) == insert_result::already_known);
}

TEST_CASE("journal: cut at every byte, it gives the state of the last whole record") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    auto d = std::make_shared<disk>();
    std::map<std::size_t, picture> after; // an operation that ended at this size
    {
      auto b = open(d);
      version v{0};
      std::int64_t next = 0;
      after[d->content.size()] = picture_of(b.state());
      for (int i = 0; i < 60; ++i) {
        step(b, random, v, next);
        after[d->content.size()] = picture_of(b.state());
      }
    }
    std::optional<picture> last;
    std::size_t compared = 0;
    for (std::size_t size = 0; size <= d->content.size(); ++size) {
      INFO("cut at " << size << " of " << d->content.size());
      auto torn = disk_of(d->content.substr(0, size));
      auto b = open(torn);
      const auto now = picture_of(b.state());
      const auto& r = b.recovery();
      REQUIRE(r.cut_bytes == (size < 8 ? size : size - r.bytes));
      REQUIRE((r.cut_bytes == 0) == (r.text.find("cut off") == std::string::npos
                                     && r.text.find("torn") == std::string::npos));
      if (r.cut_bytes == 0) {
        if (auto it = after.find(size); it != after.end()) {
          REQUIRE(now == it->second);
          ++compared;
        }
        last = now;
      } else if (last) {
        REQUIRE(now == *last);
      }
      // It goes on from there.
      if (size % 97 == 0) {
        b.insert(uniform_group(99, 2, 50));
        auto again = open(torn);
        REQUIRE(picture_of(again.state()) == picture_of(b.state()));
        REQUIRE(again.recovery().cut_bytes == 0);
      }
    }
    REQUIRE(compared == after.size());
  }
}

TEST_CASE("journal: no wrong byte changes the state unnoticed") {
  std::mt19937_64 random(3);
  auto d = std::make_shared<disk>();
  std::vector<std::size_t> ends;
  std::vector<picture> pictures;
  {
    auto b = open(d);
    for (std::int64_t g = 0; g < 4; ++g) {
      b.insert(random_group(random, g, 2, 3, 2));
      ends.push_back(d->content.size());
      pictures.push_back(picture_of(b.state()));
    }
  }
  for (std::size_t at = 0; at < d->content.size(); ++at)
    for (auto flip : {0x01, 0x80, 0xFF}) {
      INFO("byte " << at);
      auto bad = disk_of(d->content);
      bad->content[at] = static_cast<char>(bad->content[at] ^ flip);
      if (at < ends[2]) { // good records follow: a crash can't have done this
        REQUIRE_THROWS_AS(open(bad), user_error);
        if (at >= 8) {
          auto b = open(bad, {.accept_loss = true});
          REQUIRE(b.recovery().cut_bytes > 0);
          REQUIRE(picture_of(b.state()).waiting.size() < 3);
        }
      } else {
        auto b = open(bad);
        REQUIRE(picture_of(b.state()) == pictures[2]);
        REQUIRE(b.recovery().cut_bytes == ends[3] - ends[2]);
      }
    }
}

TEST_CASE("journal: what is not one is refused") {
  REQUIRE_THROWS_AS(open(disk_of("{\"question\": 1}")), user_error);
  REQUIRE_THROWS_AS(open(disk_of("MRJNL002")), user_error);
  auto zeros = disk_of("MRJNL001" + std::string(5000, '\0')); // what some file systems leave
  REQUIRE(open(zeros).recovery().cut_bytes == 5000);
}

TEST_CASE("journal: a full disk stops the call, and no change is lost or done twice") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    auto d = std::make_shared<disk>();
    d->room = 100;
    auto b = open(d, {.compact_above = seed % 2 == 0 ? std::uint64_t{2000} : UINT64_MAX});
    version v{0};
    std::int64_t next = 0;
    int failures = 0;
    for (int i = 0; i < 200; ++i) {
      try {
        step(b, random, v, next);
      } catch (const user_error&) {
        ++failures;
        next += b.state().knows(next) ? 1 : 0;
        d->room += random() % 400;
      }
    }
    REQUIRE(failures > 0);
    d->room = UINT64_MAX;
    b.sync();
    REQUIRE(picture_of(open(d).state()) == picture_of(b.state()));
  }
}

TEST_CASE("journal: it is compacted, and says the same") {
  std::mt19937_64 random(1);
  auto d = std::make_shared<disk>();
  auto b = open(d, {.compact_above = 20'000});
  version v{0};
  std::int64_t next = 0;
  std::size_t largest = 0;
  for (int i = 0; i < 3000; ++i) {
    step(b, random, v, next);
    largest = std::max(largest, d->content.size());
    if (i % 100 == 0)
      REQUIRE(picture_of(open(disk_of(d->content)).state()) == picture_of(b.state()));
  }
  REQUIRE(b.compactions() > 3);
  REQUIRE(largest < 25'000);
  REQUIRE(b.take_warning().empty());
  d->room = 10; // nothing fits: the old one stays
  REQUIRE_THROWS_AS([&] { for (int i = 0; i < 50; ++i) step(b, random, v, next); }(), user_error);
  REQUIRE_NOTHROW(open(disk_of(d->content)));
}

TEST_CASE("journal: what a power failure leaves is what the policy says") {
  for (auto sync : {journal_sync::never, journal_sync::decisions, journal_sync::always}) {
    auto d = std::make_shared<disk>();
    auto b = open(d, {.sync = sync});
    for (std::int64_t g = 0; g < 3; ++g)
      b.insert(uniform_group(g, 2, 0));
    b.hand_out({0});
    b.insert(uniform_group(3, 2, 0));
    auto left = open(disk_of(d->content.substr(0, d->synced)));
    const auto p = picture_of(left.state());
    REQUIRE(p.out.size() == (sync == journal_sync::never ? 0U : 2U));
    REQUIRE(p.known[3] == (sync == journal_sync::always));
    const auto syncs = sync == journal_sync::never ? 0 : sync == journal_sync::decisions ? 1 : 5;
    REQUIRE(d->syncs == syncs);
  }
}

TEST_CASE("journal: over crashes at any moment everything is trained once") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    auto d = std::make_shared<disk>();
    auto b = std::make_unique<durable_buffer>(open(d));
    version trainer{0}; // its checkpoint
    std::multiset<std::int64_t> trained;
    std::set<std::int64_t> accepted;
    std::int64_t next = 0;
    for (int i = 0; i < 400; ++i) {
      const auto what = random() % 10;
      if (what < 6) {
        auto g = uniform_group(next, 2, trainer.value);
        if (b->insert(std::move(g)) == insert_result::inserted)
          accepted.insert(next++);
      } else if (what < 9) {
        auto r = b->hand_out(trainer);
        if (r.what == state::ready) {
          if (random() % 4 == 0)
            continue; // the trainer died during the step
          for (const auto& g : r.batch->groups)
            trained.insert(g->group);
          trainer = trainer.next();
          if (random() % 4 != 0)
            b->confirmed(r.batch->from); // else it died before it could tell
        } else if (r.what == state::unconfirmed) {
          b->resume(trainer);
        }
      } else {
        b.reset();
        b = std::make_unique<durable_buffer>(open(d));
        b->resume(trainer);
      }
    }
    b->resume(trainer);
    for (auto g : trained)
      REQUIRE(trained.count(g) == 1);
    const auto dropped = b->state().counters().dropped / 2;
    REQUIRE(accepted.size()
            == trained.size() + b->state().waiting_groups().size()
                 + static_cast<std::size_t>(dropped));
  }
}

TEST_CASE("journal: options may change between runs") {
  auto d = std::make_shared<disk>();
  {
    auto b = open(d);
    for (std::int64_t g = 0; g < 10; ++g)
      b.insert(uniform_group(g, 2, 0));
    b.hand_out({0});
  }
  const buffer_options smaller{.capacity = 2, .batch_size = 1, .group_size = 1, .eta = 0};
  durable_buffer b(smaller, std::make_unique<memory_journal_file>(d));
  REQUIRE(b.state().depth() == 16);
  REQUIRE(b.state().room() < 0);
  REQUIRE(b.hand_out({0}).batch->groups.size() == 2);
  b.confirmed({0});
  REQUIRE(b.hand_out({1}).dropped.size() == 8); // all of version 0, and η is 0 now
}
