#include "rollout/number.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace millrace {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// Reads on from a position; every member leaves it where it was unless it succeeds.
struct cursor {
  std::string_view text;
  std::size_t at;

  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at + ahead < text.size() ? text[at + ahead] : '\0';
  }
  bool skip(std::string_view token) {
    if (text.substr(at, token.size()) != token)
      return false;
    at += token.size();
    return true;
  }
  template <std::size_t N>
  bool skip_any(const std::array<std::string_view, N>& tokens) {
    return std::any_of(tokens.begin(), tokens.end(), [&](auto t) { return skip(t); });
  }
  std::string digits() {
    const auto from = at;
    while (is_digit(peek()))
      ++at;
    return std::string(text.substr(from, at - from));
  }
};

constexpr std::array<std::string_view, 5> currencies{"\\$", "$", "€", "£", "¥"};
constexpr std::array<std::string_view, 3> thousands{"{,}", ",\\!", ","};
constexpr std::array<std::string_view, 3> fractions{"\\frac{", "\\dfrac{", "\\tfrac{"};

/// "234,567" after the "1," of 1,234,567: appended as long as groups have three digits.
void read_thousands(cursor& c, std::string& whole) {
  while (true) {
    auto ahead = c;
    if (!ahead.skip_any(thousands))
      return;
    const auto group = ahead.digits();
    if (group.size() != 3)
      return;
    whole += group;
    c = ahead;
  }
}

/// The plain part: digits with thousands, decimals and exponent. Sets `n` as a positive number.
bool read_decimal(cursor& c, number& n) {
  auto whole = c.digits();
  if (!whole.empty() && whole.size() <= 3)
    read_thousands(c, whole);
  std::string decimals;
  if (c.peek() == '.' && is_digit(c.peek(1))) {
    ++c.at;
    decimals = c.digits();
  }
  if (whole.empty() && decimals.empty())
    return false;
  std::string exponent;
  if (c.peek() == 'e' || c.peek() == 'E') {
    const bool sign = c.peek(1) == '-' || c.peek(1) == '+';
    if (is_digit(c.peek(sign ? 2 : 1))) {
      auto ahead = c;
      ahead.at += 1;
      if (ahead.peek() == '-')
        exponent = "-";
      ahead.at += sign ? 1 : 0;
      exponent += ahead.digits();
      if (is_letter(ahead.peek()))
        exponent.clear(); // "2e5f" is no number in scientific notation
      else
        c = ahead;
    }
  }
  auto plain = (whole.empty() ? "0" : whole) + (decimals.empty() ? "" : "." + decimals)
               + (exponent.empty() ? "" : "e" + exponent);
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), n.value);
  if (error != std::errc() && error != std::errc::result_out_of_range)
    return false;
  if (error == std::errc::result_out_of_range)
    n.value = HUGE_VALL; // passed over by the caller
  n.digits.clear();
  if (exponent.empty() && decimals.find_first_not_of('0') == std::string::npos) {
    whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
    n.digits = whole.empty() ? "0" : whole;
  }
  return true;
}

/// Divides; a fraction that comes out even is a whole number.
void divide(number& n, long double by) {
  n.value /= by;
  n.digits.clear();
  if (std::isfinite(n.value) && n.value == std::floor(n.value) && n.value < 1e15L)
    n.digits = std::to_string(static_cast<long long>(n.value));
}

bool read_latex_fraction(cursor& c, number& n, bool& minus) {
  auto ahead = c;
  if (!ahead.skip_any(fractions))
    return false;
  const bool inner_minus = ahead.skip("-");
  number below;
  if (!read_decimal(ahead, n) || !ahead.skip("}{") || !read_decimal(ahead, below)
      || !ahead.skip("}"))
    return false;
  divide(n, below.value);
  minus = minus != inner_minus;
  c = ahead;
  return true;
}

/// "/4" after a number, or " 1/2" after a whole one.
void read_fraction(cursor& c, number& n) {
  auto ahead = c;
  number above, below;
  if (ahead.skip("/")) {
    if (is_digit(ahead.peek()) && read_decimal(ahead, below)) {
      divide(n, below.value);
      c = ahead;
    }
    return;
  }
  if (n.digits.empty() || !ahead.skip(" "))
    return;
  const auto top = ahead.digits();
  if (top.empty() || !ahead.skip("/"))
    return;
  const auto bottom = ahead.digits();
  if (bottom.empty() || top.size() > 6 || bottom.size() > 6 || std::stol(top) >= std::stol(bottom))
    return;
  n.value += static_cast<long double>(std::stol(top)) / static_cast<long double>(std::stol(bottom));
  n.digits.clear();
  c = ahead;
}

bool read_percent(cursor& c) {
  auto ahead = c;
  ahead.skip(" ");
  if (!ahead.skip("%") && !ahead.skip("\\%") && !ahead.skip("percent"))
    return false;
  c = ahead;
  return true;
}

} // namespace

std::optional<number> number_scanner::read(std::size_t& at) const {
  cursor c{text_, at};
  const char before = at > 0 ? text_[at - 1] : ' ';
  bool minus = c.skip("-") || c.skip("−");
  const bool sign = minus || c.skip("+");
  if (sign && (is_digit(before) || is_letter(before) || before == ')' || before == ']'
               || before == '}'))
    return {};
  if (c.skip_any(currencies))
    minus = c.skip("-") || minus;
  else if (!sign && c.peek() == '.' && is_digit(before))
    return {}; // ".5" is a number of its own; the ".5" of "1.2.5" is not
  number n;
  if (!read_latex_fraction(c, n, minus)) {
    if (!read_decimal(c, n))
      return {};
    read_fraction(c, n);
  }
  n.percent = read_percent(c);
  if (minus) {
    n.value = -n.value;
    if (!n.digits.empty() && n.digits != "0")
      n.digits.insert(0, "-");
  }
  at = c.at;
  return n;
}

std::optional<number> number_scanner::next() {
  while (at_ < text_.size()) {
    auto n = read(at_);
    if (!n)
      ++at_;
    else if (std::isfinite(n->value))
      return n;
  }
  return {};
}

std::optional<number> first_number(std::string_view text) { return number_scanner(text).next(); }

std::optional<number> last_number(std::string_view text) {
  number_scanner scan(text);
  std::optional<number> last;
  while (auto n = scan.next())
    last = std::move(n);
  return last;
}

bool same_number(const number& a, const number& b, double tolerance) {
  auto near = [tolerance](long double x, long double y) {
    return std::abs(x - y) <= tolerance * std::max(1.0L, std::abs(y));
  };
  if (a.percent && !b.percent)
    return near(a.value / 100, b.value) || same_number({a.value, false, a.digits}, b, tolerance);
  if (b.percent && !a.percent)
    return near(a.value, b.value / 100) || same_number(a, {b.value, false, b.digits}, tolerance);
  if (!a.digits.empty() && !b.digits.empty())
    return a.digits == b.digits;
  return near(a.value, b.value);
}

std::string to_string(const number& n) {
  if (!n.digits.empty())
    return n.digits + (n.percent ? "%" : "");
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.12Lg%s", n.value, n.percent ? "%" : "");
  return text.data();
}

} // namespace millrace
