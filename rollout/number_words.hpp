#pragma once

#include <string>

namespace millrace {

/// A number from 0 to 999 in English words: 0 "zero", 42 "forty two", 305 "three hundred five".
/// Without hyphens, which read as a minus, and without "and".
[[nodiscard]] std::string number_words(int n);

} // namespace millrace
