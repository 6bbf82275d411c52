#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace {

/// What another program wrote, fit for a message, a log and JSON: valid UTF-8 (U+FFFD for bytes that
/// are no character), with a space for each control character, and "..." for what goes beyond
/// `longest` bytes.
[[nodiscard]] std::string readable(std::string_view bytes, std::size_t longest = 300);

} // namespace millrace
