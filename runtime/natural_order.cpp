#include "runtime/natural_order.hpp"

#include <algorithm>

namespace millrace {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Takes the number at the front off; without its leading zeros.
std::string_view take_number(std::string_view& text) {
  auto digits = text.substr(0, text.find_first_not_of("0123456789"));
  text.remove_prefix(digits.size());
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  return digits;
}

} // namespace

std::strong_ordering natural_order(std::string_view a, std::string_view b) {
  auto x = a, y = b;
  while (!x.empty() && !y.empty()) {
    if (is_digit(x[0]) && is_digit(y[0])) {
      const auto m = take_number(x), n = take_number(y);
      if (m.size() != n.size())
        return m.size() <=> n.size();
      if (m != n)
        return m <=> n;
      continue;
    }
    if (x[0] != y[0])
      return x[0] <=> y[0];
    x.remove_prefix(1);
    y.remove_prefix(1);
  }
  return x.size() != y.size() ? x.size() <=> y.size() : a <=> b;
}

} // namespace millrace
