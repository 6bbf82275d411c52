#include "rollout/answer_scores.hpp"

#include <catch2/catch.hpp>

using namespace millrace;

namespace {

/// By drawing every k of n, of which the first c are right.
double counted(int k, int n, int c) {
  int all = 0, passed = 0;
  for (unsigned set = 0; set < 1U << static_cast<unsigned>(n); ++set)
    if (__builtin_popcount(set) == k) {
      ++all;
      passed += (set & ((1U << static_cast<unsigned>(c)) - 1)) != 0 ? 1 : 0;
    }
  return static_cast<double>(passed) / all;
}

rollout answer(int tokens, finish_reason finish) {
  rollout r;
  r.tokens.assign(static_cast<std::size_t>(tokens), 1);
  r.finish = finish;
  return r;
}

} // namespace

TEST_CASE("pass@k is the share of draws with a right answer") {
  for (int n = 1; n <= 9; ++n)
    for (int c = 0; c <= n; ++c)
      for (int k = 1; k <= n; ++k) {
        INFO("n " << n << ", c " << c << ", k " << k);
        REQUIRE(pass_at(k, n, c) == Approx(counted(k, n, c)).margin(1e-12));
      }
  REQUIRE(pass_at(1, 200, 50) == Approx(0.25)); // where the binomials themselves would overflow
  REQUIRE(pass_at(100, 200, 1) == Approx(0.5));
}

TEST_CASE("scores of answers: means over answers, pass@k over the questions that are complete") {
  answer_scores s(3, 2);
  REQUIRE(s.accuracy() == 0);
  REQUIRE(s.pass_at(1) == 0);
  s.add(0, answer(4, finish_reason::stop), {.reward = 2, .correct = true});
  s.add(0, answer(8, finish_reason::length), {});
  s.add(2, answer(3, finish_reason::stop), {.failure = "it died"});
  s.add(2, answer(5, finish_reason::stop), {});
  s.add(1, answer(5, finish_reason::stop), {.reward = 3, .correct = true});
  REQUIRE(s.answers() == 5);
  REQUIRE(s.correct() == 2);
  REQUIRE(s.accuracy() == Approx(0.4));
  REQUIRE(s.reward() == Approx(1));
  REQUIRE(s.length() == Approx(5));
  REQUIRE(s.truncated() == Approx(0.2));
  REQUIRE(s.failed() == 1);
  REQUIRE(s.last_failure() == "it died");
  REQUIRE(s.complete() == 2);
  REQUIRE(s.pass_at(1) == Approx(0.25));
  REQUIRE(s.pass_at(2) == Approx(0.5));
}
