#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::model {

/// What next_code_point returns for a malformed, overlong or surrogate sequence.
inline constexpr std::uint32_t not_utf8 = 0xFFFFFFFFU;

/// U+FFFD, what stands for bytes that are no character.
inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

/// Reads the code point at byte `at` and moves past it; not_utf8 moves past one byte.
std::uint32_t next_code_point(std::string_view text, std::size_t& at);

void append_code_point(std::string& text, std::uint32_t code);

/// The position of the first byte that is not part of a character; npos when all are.
std::size_t first_bad_byte(std::string_view text);

/// Unicode's White_Space property.
bool is_white_space(std::uint32_t code);

/// Bytes that come in pieces, as whole characters. What can't become a character any more comes out
/// as U+FFFD, one for each maximal part of one (Unicode 3.9, as Python's errors="replace").
class utf8_joiner {
public:
  /// Takes bytes; returns the characters that are complete by them.
  std::string add(std::string_view bytes);
  /// The end: U+FFFD when a character was begun.
  std::string finish();

private:
  std::string held_; ///< the begin of a character, 3 bytes at most
};

/// The whole text at once.
std::string with_replacements(std::string_view bytes);

} // namespace millrace::model
