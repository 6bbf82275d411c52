#include "weightsync/receiver_machine.hpp"

#include <catch2/catch.hpp>

#include <limits>

using namespace millrace;
using namespace millrace::weightsync;
using kind = receiver_action::kind;
using state = receiver_machine::state;

namespace {

std::vector<kind> kinds(const receiver_machine::actions& actions) {
  std::vector<kind> result;
  for (const auto& a : actions)
    result.push_back(a.what);
  return result;
}

receiver_options options() { return {2, 3, 5, 30, 0.5}; }

} // namespace

TEST_CASE("notice, pull, verify, ready, installed") {
  receiver_machine m(options());
  REQUIRE(kinds(m.notice({0}, 0)) == std::vector{kind::ask_lease});
  REQUIRE(m.notice({0}, 0).empty());
  auto started = m.lease_granted({0}, 3, 1);
  REQUIRE(kinds(started) == std::vector{kind::start_fetch, kind::start_fetch}); // the window
  REQUIRE(kinds(m.fetched(started[1].ticket, 2)) == std::vector{kind::verify});
  auto third = m.verified(started[1].ticket, true, "", 2);
  REQUIRE(kinds(third) == std::vector{kind::start_fetch});
  REQUIRE(third[0].fetch == 2);
  m.fetched(started[0].ticket, 3);
  REQUIRE(m.verified(started[0].ticket, true, "", 3).empty());
  m.fetched(third[0].ticket, 3);
  REQUIRE(kinds(m.verified(third[0].ticket, true, "", 3))
          == std::vector{kind::ready, kind::release_lease});
  REQUIRE(m.phase() == state::ready);
  REQUIRE(kinds(m.installed({0}, 4)) == std::vector{kind::acknowledge});
  REQUIRE(m.installed_version() == version{0});
  REQUIRE(m.wake_at() == std::numeric_limits<double>::infinity());
}

TEST_CASE("a wrong checksum is read again, then named") {
  receiver_machine m(options());
  m.notice({0}, 0);
  auto a = m.lease_granted({0}, 1, 0);
  for (int i = 0; i < 2; ++i) {
    m.fetched(a[0].ticket, 0);
    a = m.verified(a[0].ticket, false, "shard 3 of w", 0);
    REQUIRE(kinds(a) == std::vector{kind::start_fetch});
  }
  m.fetched(a[0].ticket, 0);
  a = m.verified(a[0].ticket, false, "shard 3 of w", 0);
  REQUIRE(kinds(a) == std::vector{kind::cancel, kind::release_lease, kind::give_up});
  REQUIRE(a[2].reason.find("shard 3 of w") != std::string::npos);
  REQUIRE(m.phase() == state::backoff);
  REQUIRE(m.tick(0.4).empty());
  REQUIRE(kinds(m.tick(0.6)) == std::vector{kind::ask_lease});
}

TEST_CASE("late and duplicated events change nothing") {
  receiver_machine m(options());
  m.notice({0}, 0);
  auto a = m.lease_granted({0}, 2, 0);
  REQUIRE(m.lease_granted({0}, 2, 0).empty());
  REQUIRE(m.verified(a[0].ticket, true, "", 0).empty()); // not even fetched
  REQUIRE(kinds(m.fetched(a[0].ticket, 0)) == std::vector{kind::verify});
  REQUIRE(m.fetched(a[0].ticket, 0).empty());
  REQUIRE(m.fetched(999, 0).empty());
  m.tick(31); // too late: gives up
  REQUIRE(m.phase() == state::backoff);
  m.tick(32);
  auto b = m.lease_granted({0}, 2, 32);
  // The first attempt's events come in the middle of the second one.
  REQUIRE(m.fetched(a[1].ticket, 32).empty());
  REQUIRE(m.verified(a[0].ticket, true, "", 32).empty());
  REQUIRE(m.fetch_failed(a[0].ticket, "late", 32).empty());
  REQUIRE(kinds(m.fetched(b[0].ticket, 32)) == std::vector{kind::verify});
}

TEST_CASE("the newest version wins, but not over the one being pulled") {
  receiver_machine m(options());
  m.notice({0}, 0);
  auto a = m.lease_granted({0}, 1, 0);
  REQUIRE(m.notice({1}, 0).empty());
  REQUIRE(m.notice({2}, 0).empty());
  m.fetched(a[0].ticket, 0);
  m.verified(a[0].ticket, true, "", 0);
  auto next = m.installed({0}, 1);
  REQUIRE(kinds(next) == std::vector{kind::acknowledge, kind::ask_lease});
  REQUIRE(next[1].number == version{2});
  // Version 2 is gone already:
  next = m.lease_refused({2}, {5}, 1);
  REQUIRE(kinds(next) == std::vector{kind::ask_lease});
  REQUIRE(next[0].number == version{5});
}

TEST_CASE("no answer, and no version yet, end in another attempt") {
  receiver_machine m(options());
  m.notice({1}, 0);
  REQUIRE(m.wake_at() == 5);
  REQUIRE(kinds(m.tick(5)) == std::vector{kind::release_lease, kind::give_up});
  // The grant arrives when nobody waits for it any more: handed back.
  REQUIRE(kinds(m.lease_granted({1}, 1, 5.1)) == std::vector{kind::release_lease});
  REQUIRE(kinds(m.tick(6)) == std::vector{kind::ask_lease});
  REQUIRE(kinds(m.lease_refused({1}, no_version, 6)).back() == kind::give_up);
}

TEST_CASE("an empty plan is ready at once") {
  receiver_machine m(options());
  m.notice({0}, 0);
  REQUIRE(kinds(m.lease_granted({0}, 0, 0)) == std::vector{kind::ready, kind::release_lease});
}
