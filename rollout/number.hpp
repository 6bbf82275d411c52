#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

/// A number as people and models write it.
struct number {
  long double value = 0;
  bool percent = false; ///< "50%": value is 50
  std::string digits;   ///< of a whole number written out, without leading zeros; else empty
};

/// Finds the numbers in a text, one after another: 7, -3, −3, +4, 1,234.50, 1{,}000, .5, 6.02e23,
/// 3/4, 1 1/2, \frac{3}{4}, $5, -$5, €5, 50%, 50\%, 50 percent. A hyphen after a letter, a digit or
/// a bracket is no sign ("7-5" is 7 and 5). What is too large for a long double, or divides by
/// zero, is passed over. Linear in the text; any bytes will do.
class number_scanner {
public:
  explicit number_scanner(std::string_view text) : text_(text) {}
  /// The next number, or nothing at the end.
  std::optional<number> next();

private:
  std::optional<number> read(std::size_t& at) const;

  std::string_view text_;
  std::size_t at_ = 0;
};

[[nodiscard]] std::optional<number> first_number(std::string_view text);
[[nodiscard]] std::optional<number> last_number(std::string_view text);

/// Whole numbers are equal when all their digits are; others when they differ by at most
/// `tolerance`·max(1, |b|). Where only one of them is a percentage, 50% equals both 50 and 0.5.
[[nodiscard]] bool same_number(const number& a, const number& b, double tolerance);

/// "12", "0.75", "50%": for people.
[[nodiscard]] std::string to_string(const number& n);

} // namespace millrace
