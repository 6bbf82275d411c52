#pragma once

// Numbers as people read them on a screen.

#include <string>
#include <string_view>

namespace millrace {

/// What std::printf would print.
[[nodiscard, gnu::format(printf, 1, 2)]] std::string printed(const char* format, ...);

/// Columns that UTF-8 text takes up in a terminal, for the letters used here; colours take none.
[[nodiscard]] std::size_t columns_of(std::string_view text);

/// "12 ms", "1.5 s", "62 m 03" (with seconds), "2 h 03" (with minutes).
[[nodiscard]] std::string short_duration(double seconds);
/// "123", "12.3k", "1.5M", "2.0G".
[[nodiscard]] std::string short_number(double x);

} // namespace millrace
