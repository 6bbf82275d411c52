#include "runtime/model/utf8.hpp"

#include <utility>

namespace millrace::model {
namespace {

std::uint32_t byte_of(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}

/// How the bytes at `at` begin: `length` of them belong together; `whole` when they are a
/// character, `open` when the text ends before it does.
struct sequence_begin {
  std::size_t length;
  bool whole;
  bool open;
};

sequence_begin look_at(std::string_view text, std::size_t at) {
  const auto first = byte_of(text, at);
  if (first < 0x80)
    return {1, true, false};
  if (first < 0xC2 || first > 0xF4)
    return {1, false, false};
  const std::size_t wanted = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  // The second byte's range rules out overlong forms, surrogates and what is above U+10FFFF.
  const std::uint32_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const std::uint32_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < wanted; ++i) {
    if (at + i >= text.size())
      return {i, false, true};
    const auto b = byte_of(text, at + i);
    if (b < (i == 1 ? low : 0x80) || b > (i == 1 ? high : 0xBF))
      return {i, false, false};
  }
  return {wanted, true, false};
}

/// Appends what is complete in `bytes` to `out`; returns where an unfinished character begins.
std::size_t append_complete(std::string& out, std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    const auto s = look_at(bytes, at);
    if (s.open)
      return at;
    if (s.whole)
      out.append(bytes.substr(at, s.length));
    else
      out += replacement_character;
    at += s.length;
  }
  return at;
}

} // namespace

std::uint32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto s = look_at(text, at);
  if (!s.whole) {
    ++at;
    return not_utf8;
  }
  auto code = byte_of(text, at) & (s.length == 1 ? 0x7FU : 0x7FU >> s.length);
  for (std::size_t i = 1; i < s.length; ++i)
    code = code << 6 | (byte_of(text, at + i) & 0x3FU);
  at += s.length;
  return code;
}

void append_code_point(std::string& text, std::uint32_t code) {
  const auto put = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

std::size_t first_bad_byte(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto s = look_at(text, at);
    if (!s.whole)
      return at;
    at += s.length;
  }
  return std::string_view::npos;
}

bool is_white_space(std::uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680
         || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F
         || c == 0x205F || c == 0x3000;
}

std::string utf8_joiner::add(std::string_view bytes) {
  std::string out;
  if (held_.empty()) {
    held_ = bytes.substr(append_complete(out, bytes));
    return out;
  }
  held_ += bytes;
  const auto at = append_complete(out, held_);
  held_.erase(0, at);
  return out;
}

std::string utf8_joiner::finish() {
  return std::exchange(held_, {}).empty() ? std::string() : std::string(replacement_character);
}

std::string with_replacements(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  if (append_complete(out, bytes) < bytes.size())
    out += replacement_character;
  return out;
}

} // namespace millrace::model
