#pragma once

#include <compare>
#include <string_view>

namespace millrace {

/// As people sort names: numbers in them by their value, so that "node-2" comes before "node-10". Only
/// the same text is equal.
[[nodiscard]] std::strong_ordering natural_order(std::string_view a, std::string_view b);

/// For std::map and std::sort.
struct naturally_before {
  bool operator()(std::string_view a, std::string_view b) const { return natural_order(a, b) < 0; }
};

} // namespace millrace
