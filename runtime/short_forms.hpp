#pragma once

// Numbers as people read them on a screen.

#include <string>

namespace millrace {

/// What std::printf would print.
[[nodiscard, gnu::format(printf, 1, 2)]] std::string printed(const char* format, ...);

/// "12 ms", "1.5 s", "62 m 03" (with seconds), "2 h 03" (with minutes).
[[nodiscard]] std::string short_duration(double seconds);
/// "123", "12.3k", "1.5M", "2.0G".
[[nodiscard]] std::string short_number(double x);

} // namespace millrace
