#include "runtime/model/answer_text.hpp"
#include "runtime/model/tokenizer.hpp"

#include <catch2/catch.hpp>

#include <random>

using namespace millrace::model;

namespace {

/// What add() gives for each character, joined, and what finish() adds.
struct told {
  std::string shown, rest, text;
  bool stopped;
};

told tell(const tokenizer& t, const std::string& text, const std::vector<std::string>& stops,
          std::size_t may_stop_from = 0) {
  answer_text a(t, stops);
  told out;
  std::size_t i = 0;
  for (const auto id : t.encode(text)) {
    out.shown += a.add(id, i++ >= may_stop_from);
    if (a.stopped())
      break;
  }
  out.rest = a.finish();
  out.text = a.text();
  out.stopped = a.stopped();
  return out;
}

} // namespace

TEST_CASE("text ends before a stop string, and what may become one is held back") {
  const auto t = make_character_tokenizer();
  auto a = tell(*t, "one\n\ntwo", {"\n\n"});
  REQUIRE(a.stopped);
  REQUIRE(a.shown == "one");
  REQUIRE(a.text == "one");
  a = tell(*t, "one\nEN", {"\nEND"});
  REQUIRE_FALSE(a.stopped);
  REQUIRE(a.shown == "one");
  REQUIRE(a.rest == "\nEN");
  REQUIRE(a.text == "one\nEN");
  a = tell(*t, "aaab", {"aab", "", "zz"});
  REQUIRE(a.stopped);
  REQUIRE(a.text == "a");
  a = tell(*t, "xabcy", {"bc", "abcd", "abc"}); // of those that are complete, the first
  REQUIRE(a.text == "x");
  REQUIRE(a.stopped);
  a = tell(*t, "no stop", {});
  REQUIRE(a.shown == "no stop");
  REQUIRE_FALSE(a.stopped);
  a = tell(*t, "ab ab", {"ab"}, 2); // not before the third token
  REQUIRE(a.text == "ab ");
  REQUIRE(a.stopped);
}

TEST_CASE("what is shown, joined, is the text up to the first stop string that is complete") {
  const auto t = make_character_tokenizer({"ab", false});
  const auto seed = 9U;
  INFO("seed " << seed);
  std::mt19937 draw(seed);
  const auto random = [&](std::size_t n) {
    std::string s;
    while (s.size() < n)
      s += draw() % 2 == 0 ? 'a' : 'b';
    return s;
  };
  for (int round = 0; round < 3000; ++round) {
    const auto text = random(draw() % 30);
    std::vector<std::string> stops;
    for (auto n = draw() % 3; n > 0; --n)
      stops.push_back(random(1 + draw() % 5));
    auto expected = text;
    bool stopped = false;
    for (std::size_t end = 1; end <= text.size() && !stopped; ++end) {
      auto at = std::string::npos;
      for (const auto& s : stops)
        at = std::min(at, text.substr(0, end).find(s));
      if (at != std::string::npos)
        expected = text.substr(0, at), stopped = true;
    }
    const auto a = tell(*t, text, stops);
    REQUIRE(a.stopped == stopped);
    REQUIRE(a.text == expected);
    REQUIRE(a.shown + a.rest == expected);
  }
}
