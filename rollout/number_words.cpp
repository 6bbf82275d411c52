#include "rollout/number_words.hpp"

#include "runtime/error.hpp"

#include <array>
#include <string_view>

namespace millrace {

namespace {

constexpr std::array<std::string_view, 20> units{
  "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
  "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};

constexpr std::array<std::string_view, 10> tens{
  "", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"};

} // namespace

std::string number_words(int n) {
  ensure(n >= 0 && n <= 999, [&] { return "no words for " + std::to_string(n); });
  std::string text;
  if (n >= 100) {
    text.append(units[static_cast<std::size_t>(n / 100)]).append(" hundred");
    if (n % 100 == 0)
      return text;
    text += ' ';
    n %= 100;
  }
  if (n < 20)
    return text.append(units[static_cast<std::size_t>(n)]);
  text.append(tens[static_cast<std::size_t>(n / 10)]);
  if (n % 10 != 0)
    text.append(" ").append(units[static_cast<std::size_t>(n % 10)]);
  return text;
}

} // namespace millrace
