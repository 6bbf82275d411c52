#pragma once

#include <span>
#include <string>
#include <string_view>

namespace millrace {

/// Insertions, deletions, replacements and swaps of neighbours that lead from `a` to `b`.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate that `word` was most likely meant to be, or an empty string when none is close
/// enough to be worth a suggestion.
[[nodiscard]] std::string nearest(std::string_view word, std::span<const std::string> candidates);

/// " (did you mean "x"?)", or nothing. For the end of an error text.
[[nodiscard]] std::string did_you_mean(std::string_view word,
                                       std::span<const std::string> candidates);

/// `"a", "b", "c"`; for the lists of what is allowed.
[[nodiscard]] std::string quoted_list(std::span<const std::string> words);

} // namespace millrace
