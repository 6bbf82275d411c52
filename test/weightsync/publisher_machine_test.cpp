#include "runtime/error.hpp"
#include "weightsync/publisher_machine.hpp"

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::weightsync;

namespace {

std::size_t publish(publisher_machine& m, std::int32_t v, double now) {
  auto slot = m.begin({v}, now);
  REQUIRE(slot);
  m.commit(*slot, now);
  return *slot;
}

} // namespace

TEST_CASE("without readers, publishing alternates between the slots") {
  publisher_machine m(2, 10);
  REQUIRE(m.current() == no_version);
  REQUIRE_FALSE(m.acquire("g0", {0}, 0));
  auto a = publish(m, 0, 0);
  auto b = publish(m, 1, 1);
  REQUIRE(a != b);
  REQUIRE(publish(m, 2, 2) == a);
  REQUIRE(m.current() == version{2});
}

TEST_CASE("a leased slot is not overwritten until the last reader releases it") {
  publisher_machine m(2, 10);
  publish(m, 0, 0);
  auto g0 = m.acquire("g0", {0}, 0);
  auto g1 = m.acquire("g1", {0}, 1);
  REQUIRE(g0);
  REQUIRE(g1);
  publish(m, 1, 2);
  REQUIRE_FALSE(m.begin({2}, 3));
  REQUIRE(m.blocked_until(3) == 11); // the later of the two deadlines
  REQUIRE(m.release(g0.id, 4));
  REQUIRE_FALSE(m.begin({2}, 4));
  REQUIRE(m.release(g1.id, 5));
  REQUIRE(m.begin({2}, 5));
}

TEST_CASE("a dead reader's lease expires; renewals keep a living one's") {
  publisher_machine m(2, 10);
  publish(m, 0, 0);
  auto dead = m.acquire("dead", {0}, 0);
  auto slow = m.acquire("slow", {0}, 0);
  publish(m, 1, 1);
  REQUIRE(m.renew(slow.id, 9));
  REQUIRE_FALSE(m.begin({2}, 10.5));
  REQUIRE(m.expired_leases() == 1);
  REQUIRE_FALSE(m.renew(dead.id, 10.6));
  REQUIRE_FALSE(m.release(dead.id, 10.7));
  REQUIRE(m.release(slow.id, 11));
  REQUIRE(m.begin({2}, 11));
}

TEST_CASE("only the current version is leased; others are told which one that is") {
  publisher_machine m(2, 10);
  publish(m, 0, 0);
  publish(m, 1, 0);
  auto late = m.acquire("g", {0}, 0);
  REQUIRE_FALSE(late);
  REQUIRE(late.number == version{1});
  auto ok = m.acquire("g", {1}, 0);
  REQUIRE(ok);
  REQUIRE(m.acquire("g", {1}, 5).id == ok.id); // asked twice: the same lease, renewed
  REQUIRE(m.leases().size() == 1);
  REQUIRE(m.leases().begin()->second.deadline == 15);
}

TEST_CASE("a receiver that is known to be gone holds nothing") {
  publisher_machine m(2, 10);
  publish(m, 0, 0);
  REQUIRE(m.acquire("g", {0}, 0));
  m.acknowledge("g", {0});
  publish(m, 1, 0);
  m.forget("g", 1);
  REQUIRE(m.begin({2}, 1));
  REQUIRE(m.acknowledged("g") == no_version);
}

TEST_CASE("acknowledgements only grow") {
  publisher_machine m(2, 10);
  REQUIRE(m.acknowledged("g") == no_version);
  m.acknowledge("g", {3});
  m.acknowledge("g", {2});
  REQUIRE(m.acknowledged("g") == version{3});
}

TEST_CASE("an abandoned slot is free again; a failed version number may not come back") {
  publisher_machine m(2, 10);
  publish(m, 0, 0);
  auto slot = m.begin({1}, 0);
  REQUIRE(slot);
  m.abandon(*slot);
  REQUIRE(m.current() == version{0});
  REQUIRE_THROWS_AS(m.begin({1}, 0), invariant_error);
  publish(m, 2, 0);
  REQUIRE_THROWS_AS(m.commit(0, 0), invariant_error);
}
