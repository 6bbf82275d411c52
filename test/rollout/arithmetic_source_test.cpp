#include "rollout/arithmetic_source.hpp"

#include "rollout/number_words.hpp"
#include "runtime/error.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <map>
#include <set>
#include <sstream>

using namespace millrace;

namespace {

arithmetic_settings tasks(std::int32_t max, const std::string& operations, double words = 0.5) {
  arithmetic_settings s;
  s.max_operand = max;
  s.operations = operations;
  s.words = words;
  return s;
}

const std::map<std::string, int>& numbers_by_word() {
  static const auto map = [] {
    std::map<std::string, int> m;
    for (int n = 0; n <= 999; ++n) {
      m[number_words(n)] = n;
      m[std::to_string(n)] = n;
    }
    return m;
  }();
  return map;
}

/// Reads a task in whatever writing, on its own: operands and operations in digits and signs.
std::vector<std::string> read(std::string text) {
  for (auto [word, sign] : {std::pair{" plus ", "+"}, {" minus ", "-"}, {" times ", "*"}})
    for (auto at = text.find(word); at != std::string::npos; at = text.find(word))
      text.replace(at, std::string(word).size(), sign);
  REQUIRE(text.back() == '=');
  text.pop_back();
  std::vector<std::string> parts{""};
  for (char c : text)
    if (c == '+' || c == '-' || c == '*') {
      parts.push_back({c});
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  for (std::size_t i = 0; i < parts.size(); i += 2)
    parts[i] = std::to_string(numbers_by_word().at(parts[i]));
  return parts;
}

long solve(std::vector<std::string> p) {
  for (std::size_t i = 1; i < p.size();)
    if (p[i] == "*") {
      p[i - 1] = std::to_string(std::stol(p[i - 1]) * std::stol(p[i + 1]));
      p.erase(p.begin() + static_cast<long>(i), p.begin() + static_cast<long>(i) + 2);
    } else {
      i += 2;
    }
  auto sum = std::stol(p[0]);
  for (std::size_t i = 1; i < p.size(); i += 2)
    sum += (p[i] == "+" ? 1 : -1) * std::stol(p[i + 1]);
  return sum;
}

std::string fact(const std::string& text, bool sorted = false) {
  auto p = read(text);
  if (sorted && p.size() == 3 && p[1] != "-" && std::stol(p[0]) > std::stol(p[2]))
    std::swap(p[0], p[2]);
  std::string joined;
  for (const auto& part : p)
    joined += part;
  return joined;
}

} // namespace

TEST_CASE("number words") {
  REQUIRE(number_words(0) == "zero");
  REQUIRE(number_words(13) == "thirteen");
  REQUIRE(number_words(40) == "forty");
  REQUIRE(number_words(42) == "forty two");
  REQUIRE(number_words(300) == "three hundred");
  REQUIRE(number_words(305) == "three hundred five");
  REQUIRE(number_words(999) == "nine hundred ninety nine");
  REQUIRE_THROWS_AS(number_words(1000), invariant_error);
  std::set<std::string> all;
  for (int n = 0; n <= 999; ++n)
    all.insert(number_words(n));
  REQUIRE(all.size() == 1000);
}

TEST_CASE("arithmetic: answers are right, whatever the options") {
  for (auto terms : {2, 3, 4})
    for (auto max : {1, 9, 99, 999})
      for (const auto* operations : {"+", "-", "*", "+-", "-+*"})
        for (auto words : {0.0, 0.3, 1.0}) {
          auto s = tasks(max, operations, words);
          s.terms = terms;
          const arithmetic_source source(s, 1, 11);
          const auto alphabet = source.alphabet();
          for (std::int64_t i = 0; i < 40; ++i) {
            const auto p = source.at(i);
            INFO(p.text << " " << p.answer);
            REQUIRE(p.id == i);
            REQUIRE(read(p.text).size() == static_cast<std::size_t>(2 * terms - 1));
            REQUIRE(std::to_string(solve(read(p.text))) == p.answer);
            REQUIRE(source.demonstration(p) == p.answer);
            REQUIRE((p.text + p.answer).find_first_not_of(alphabet) == std::string::npos);
          }
        }
}

TEST_CASE("arithmetic: examples of the writings") {
  const arithmetic_source digits(tasks(9, "+", 0), 0, 1);
  const arithmetic_source words(tasks(9, "+", 1), 0, 1);
  for (std::int64_t i = 0; i < 100; ++i) {
    REQUIRE(digits.at(i).text.size() == 4); // "7+5="
    REQUIRE(words.at(i).text.find(" plus ") != std::string::npos);
    REQUIRE(words.at(i).text.find_first_of("0123456789+") == std::string::npos);
  }
  int word_operands = 0;
  const arithmetic_source some(tasks(9, "+", 0.25), 0, 1);
  for (std::int64_t i = 0; i < 4000; ++i)
    word_operands += std::isalpha(static_cast<unsigned char>(some.at(i).text[0])) != 0;
  REQUIRE(word_operands > 900);
  REQUIRE(word_operands < 1100);
}

TEST_CASE("arithmetic: the same seed gives the same stream, another seed another") {
  const auto s = tasks(20, "+-");
  const arithmetic_source a(s, 50, 3), b(s, 50, 3), c(s, 50, 4);
  int same = 0;
  for (std::int64_t i = 0; i < 500; ++i) {
    REQUIRE(a.at(i).text == b.at(i).text);
    same += a.at(i).text == c.at(i).text;
  }
  for (std::int64_t i = 0; i < 50; ++i)
    REQUIRE(a.held_out(i).text == b.held_out(i).text);
  REQUIRE(same < 20);
}

TEST_CASE("arithmetic: held-out prompts are never trained on") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    for (auto words : {0.0, 0.5, 1.0})
      for (auto held_out : {0.0, 1.0, 40.0, 0.25}) {
        const arithmetic_source source(tasks(9, "+-", words), held_out, seed);
        std::set<std::string> kept;
        for (std::int64_t i = 0; i < source.held_out_size(); ++i) {
          const auto p = source.held_out(i);
          REQUIRE(p.id == prompt_source::held_out_ids + i);
          REQUIRE(kept.insert(p.text).second); // no two are the same
          REQUIRE(source.demonstration(p) == p.answer);
        }
        const std::size_t space = words == 0.5 ? 1600 : 200;
        REQUIRE(kept.size() == (held_out < 1 ? static_cast<std::size_t>(held_out * double(space))
                                             : static_cast<std::size_t>(held_out)));
        for (std::int64_t i = 0; i < 2000; ++i)
          REQUIRE_FALSE(kept.contains(source.at(i).text));
      }
}

TEST_CASE("arithmetic: held-out facts are not trained on in any writing or order") {
  auto s = tasks(12, "+-*");
  s.held_out_facts = true;
  const arithmetic_source source(s, 100, 5);
  std::set<std::string> kept;
  for (std::int64_t i = 0; i < source.held_out_size(); ++i)
    kept.insert(fact(source.held_out(i).text, true));
  REQUIRE(kept.size() > 90); // a few are mirror images of each other
  for (std::int64_t i = 0; i < 5000; ++i)
    REQUIRE_FALSE(kept.contains(fact(source.at(i).text, true)));
}

TEST_CASE("arithmetic: an epoch shows each fact once but for those held out") {
  const arithmetic_source source(tasks(9, "+-"), 0, 2);
  REQUIRE(source.epoch_size() == 200);
  std::vector<std::string> orders[2];
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::set<std::string> facts;
    for (std::int64_t i = 0; i < 200; ++i) {
      orders[epoch].push_back(fact(source.at(epoch * 200 + i).text));
      facts.insert(orders[epoch].back());
    }
    REQUIRE(facts.size() == 200);
  }
  REQUIRE(orders[0] != orders[1]);
}

TEST_CASE("arithmetic: results below zero only where wanted") {
  auto s = tasks(9, "-");
  s.terms = 3;
  s.negative = false;
  const arithmetic_source source(s, 20, 1);
  for (std::int64_t i = 0; i < 1000; ++i)
    REQUIRE(source.at(i).answer[0] != '-');
  for (std::int64_t i = 0; i < 20; ++i)
    REQUIRE(source.held_out(i).answer[0] != '-');
}

TEST_CASE("arithmetic: worked answers count, and end in the result") {
  auto s = tasks(9, "+-*", 0);
  s.worked = true;
  const arithmetic_source source(s, 10, 1);
  std::set<std::size_t> lengths;
  for (std::int64_t i = 0; i < 300; ++i) {
    const auto p = source.at(i);
    const auto demonstration = source.demonstration(p);
    lengths.insert(demonstration.size());
    REQUIRE(demonstration.substr(demonstration.rfind(' ') + 1) == p.answer);
    if (p.text == "7+3=")
      REQUIRE(demonstration == "8 9 10");
    if (p.text == "1-3=")
      REQUIRE(demonstration == "0 -1 -2");
    if (p.text == "4*3=")
      REQUIRE(demonstration == "4 8 12");
    if (p.text == "4*0=" || p.text == "0-0=")
      REQUIRE(demonstration == "0");
  }
  REQUIRE(lengths.size() > 15);
}

TEST_CASE("arithmetic: a cursor goes on where the stream stood") {
  arithmetic_source a(tasks(9, "+-"), 20, 1);
  for (int i = 0; i < 777; ++i)
    a.next();
  const auto saved = nlohmann::json::parse(a.cursor().dump());
  arithmetic_source b(tasks(9, "+-"), 20, 1);
  b.seek(saved);
  REQUIRE(b.position() == 777);
  REQUIRE(b.epoch() == 3);
  for (int i = 0; i < 100; ++i) {
    const auto p = a.next(), q = b.next();
    REQUIRE(p.id == q.id);
    REQUIRE(p.text == q.text);
  }
  arithmetic_source other(tasks(9, "+-"), 20, 2);
  REQUIRE_THROWS_AS(other.seek(saved), user_error);
  REQUIRE_THROWS_AS(b.seek({{"position", -1}, {"source", b.fingerprint()}}), user_error);
  REQUIRE_THROWS_AS(b.seek({{"position", "x"}, {"source", b.fingerprint()}}), user_error);
  REQUIRE_THROWS_AS(b.seek(nlohmann::json::array()), user_error);
}

TEST_CASE("arithmetic: options that can't be are refused by name") {
  auto refused = [](const arithmetic_settings& s, double held_out, const std::string& named) {
    try {
      arithmetic_source source(s, held_out, 0);
    } catch (const user_error& e) {
      INFO(e.what());
      REQUIRE(std::string(e.what()).find(named) != std::string::npos);
      return;
    }
    FAIL("accepted, expected a word about " << named);
  };
  refused(tasks(0, "+"), 0, "data.arithmetic.max_operand");
  refused(tasks(1000, "+"), 0, "data.arithmetic.max_operand");
  refused(tasks(9, ""), 0, "data.arithmetic.operations");
  refused(tasks(9, "++"), 0, "data.arithmetic.operations");
  refused(tasks(9, "/"), 0, "data.arithmetic.operations");
  refused(tasks(9, "+", 1.5), 0, "data.arithmetic.words");
  refused(tasks(9, "+", 0), 51, "data.held_out"); // 100 prompts
  refused(tasks(9, "+", 0), -1, "data.held_out");
  auto s = tasks(99, "+");
  s.worked = true;
  refused(s, 0, "data.arithmetic.worked");
  s = tasks(9, "+");
  s.terms = 5;
  refused(s, 0, "data.arithmetic.terms");
  arithmetic_source most(tasks(9, "+", 0), 50, 0);
  REQUIRE(most.held_out_size() == 50);
  for (int i = 0; i < 200; ++i)
    most.next();
}
