#include "rollout/number.hpp"

#include "rollout/final_answer.hpp"

#include <catch2/catch.hpp>

#include <random>
#include <vector>

using namespace millrace;

namespace {

std::vector<std::string> all_numbers(std::string_view text) {
  std::vector<std::string> found;
  number_scanner scan(text);
  while (auto n = scan.next())
    found.push_back(to_string(*n));
  return found;
}

using texts = std::vector<std::string>;

bool same(std::string_view a, std::string_view b, double tolerance = 1e-6) {
  return same_number(*last_number(a), *last_number(b), tolerance);
}

} // namespace

TEST_CASE("numbers: as people write them") {
  REQUIRE(all_numbers("").empty());
  REQUIRE(all_numbers("no number - at all. $ % / , .").empty());
  REQUIRE(all_numbers("7") == texts{"7"});
  REQUIRE(all_numbers("-7 +7 −7") == texts{"-7", "7", "-7"});
  REQUIRE(all_numbers("12.") == texts{"12"});
  REQUIRE(all_numbers("12.50 .5 -.5 0.0") == texts{"12.5", "0.5", "-0.5", "0"});
  REQUIRE(all_numbers("007, -0") == texts{"7", "0"});
  REQUIRE(all_numbers("1,234,567.25") == texts{"1234567.25"});
  REQUIRE(all_numbers("1,080") == texts{"1080"});
  REQUIRE(all_numbers("1{,}000 and 2,\\!000") == texts{"1000", "2000"});
  REQUIRE(all_numbers("1,2,3") == texts{"1", "2", "3"});
  REQUIRE(all_numbers("1,23 1234,567") == texts{"1", "23", "1234", "567"});
  REQUIRE(all_numbers("$5 -$5 $-5 \\$7 €8 -£9") == texts{"5", "-5", "-5", "7", "8", "-9"});
  REQUIRE(all_numbers("$$12$$") == texts{"12"});
  REQUIRE(all_numbers("50% 50\\% 50 % 50 percent 5") == texts{"50%", "50%", "50%", "50%", "5"});
  REQUIRE(all_numbers("3/4 -1/2 10/5") == texts{"0.75", "-0.5", "2"});
  REQUIRE(all_numbers("1 1/2 cups, 2 3/2") == texts{"1.5", "2", "1.5"});
  REQUIRE(all_numbers("\\frac{3}{4} -\\dfrac{1}{2} \\tfrac{-1}{4}")
          == texts{"0.75", "-0.5", "-0.25"});
  REQUIRE(all_numbers("6.02e23 1e-3 1E3") == texts{"6.02e+23", "0.001", "1000"});
  REQUIRE(all_numbers("2e 2ex 2e5x") == texts{"2", "2", "2", "5"});
  REQUIRE(all_numbers("7-5 (3)-2 x-1 x=-1") == texts{"7", "5", "3", "2", "1", "-1"});
  REQUIRE(all_numbers("1.2.5") == texts{"1.2", "5"});
  REQUIRE(all_numbers("12:30") == texts{"12", "30"});
}

TEST_CASE("numbers: what is none is passed over") {
  REQUIRE(all_numbers("1/0 0/0 \\frac{1}{0} 3") == texts{"3"});
  REQUIRE(all_numbers("1e99999 -1e99999 4") == texts{"4"});
  REQUIRE(all_numbers("\\frac{a}{2}") == texts{"2"});
  REQUIRE(all_numbers("\\frac{1}{") == texts{"1"});
  REQUIRE(all_numbers(std::string(20'000, '9')).empty()); // beyond a long double
}

TEST_CASE("numbers: equality") {
  REQUIRE(same("12", "12.0"));
  REQUIRE(same("1,000", "1000.00"));
  REQUIRE(same("0.5", "1/2"));
  REQUIRE(same("2", "4/2"));
  REQUIRE(same("-0", "0"));
  REQUIRE(same("0.3333333", "1/3"));
  REQUIRE_FALSE(same("0.33", "1/3"));
  REQUIRE(same("0.33", "1/3", 0.01));
  REQUIRE_FALSE(same("5", "-5"));
  // Whole numbers exactly, however large.
  REQUIRE_FALSE(same("1000000000", "1000000001"));
  REQUIRE_FALSE(same("123456789012345678901", "123456789012345678902"));
  REQUIRE(same("123456789012345678901", "123,456,789,012,345,678,901"));
  // A percentage on one side only may be meant either way.
  REQUIRE(same("50%", "50"));
  REQUIRE(same("50%", "0.5"));
  REQUIRE(same("50", "50%"));
  REQUIRE(same("50%", "50\\%"));
  REQUIRE_FALSE(same("50%", "0.5%"));
  REQUIRE_FALSE(same("50%", "5000"));
}

TEST_CASE("numbers: any whole number in any text is found again") {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    const auto n = static_cast<std::int64_t>(random() >> (random() % 60)) / 2
                   * (random() % 2 == 0 ? 1 : -1);
    auto digits = std::to_string(n < 0 ? -n : n);
    if (random() % 2 == 0)
      for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
        digits.insert(static_cast<std::size_t>(at), ",");
    const auto text = "is " + std::string(n < 0 ? "-" : "") + digits + (random() % 2 ? ".0" : ".");
    REQUIRE(last_number(text)->digits == std::to_string(n));
  }
}

TEST_CASE("numbers: any bytes, and in linear time") {
  constexpr std::string_view pieces = "0123456789+-.,/%$e \\{}frac\xE2\x88\x92\xC2\xA3\0";
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    std::mt19937_64 random(seed);
    std::string text;
    for (auto n = random() % 60; n > 0; --n)
      text += random() % 10 == 0 ? static_cast<char>(random()) : pieces[random() % pieces.size()];
    INFO("seed " << seed);
    (void)all_numbers(text);
    (void)marked_answer(text);
  }
  for (const auto* unit : {"1/", "-", "$", "1,000,", "\\frac{", "1 1/", "####", "\\boxed{", "1e"}) {
    std::string text;
    while (text.size() < 1'000'000)
      text += unit;
    (void)last_number(text);
    (void)marked_answer(text);
  }
}

TEST_CASE("marked answers") {
  REQUIRE(marked_answer("a\n#### 42\n") == "42");
  REQUIRE(marked_answer("#### 1\n#### 2 \r\nrest") == "2");
  REQUIRE(marked_answer("####") == "");
  REQUIRE(marked_answer("so \\boxed{\\frac{3}{4}}.") == "\\frac{3}{4}");
  REQUIRE(marked_answer("\\boxed{ {1} \\{2\\} }") == "{1} \\{2\\}");
  REQUIRE(marked_answer("\\boxed{1} then \\boxed{2}") == "2");
  REQUIRE(marked_answer("\\boxed{1}\n#### 2") == "2");
  REQUIRE(marked_answer("#### 2 \\boxed{1}") == "1");
  REQUIRE_FALSE(marked_answer("\\boxed{1"));
  REQUIRE_FALSE(marked_answer("\\boxed{1\\}"));
  REQUIRE_FALSE(marked_answer("### 2"));
  REQUIRE_FALSE(marked_answer(""));
}
