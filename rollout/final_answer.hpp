#pragma once

#include <optional>
#include <string_view>

namespace millrace {

/// The part of a text that is marked as its answer: what stands after "####" to the end of that
/// line (GSM8K), or inside \boxed{…} (MATH); the last one where there are several. Trimmed, a view
/// into the text. Nothing when no mark is there, or its bracket is not closed.
[[nodiscard]] std::optional<std::string_view> marked_answer(std::string_view text);

/// Without spaces, tabs and line ends around it.
[[nodiscard]] std::string_view trimmed(std::string_view text);

} // namespace millrace
