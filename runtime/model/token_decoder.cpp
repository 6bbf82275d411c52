#include "runtime/model/token_decoder.hpp"

#include "runtime/model/utf8.hpp"

#include <array>
#include <cctype>

namespace millrace::model {
namespace {

/// Printable Latin-1 bytes stand for themselves; the other 68 take the code points from 256 on.
std::array<std::int16_t, 324> byte_alphabet() {
  std::array<std::int16_t, 324> by_code{};
  by_code.fill(-1);
  std::size_t next = 256;
  for (std::int16_t b = 0; b < 256; ++b) {
    const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    by_code[printable ? static_cast<std::size_t>(b) : next++] = b;
  }
  return by_code;
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (auto at = text.find(what); at != text.npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

} // namespace

std::optional<std::string> from_byte_alphabet(std::string_view piece) {
  static const auto by_code = byte_alphabet();
  std::string bytes;
  for (std::size_t at = 0; at < piece.size();) {
    const auto code = next_code_point(piece, at);
    if (code >= by_code.size() || by_code[code] < 0)
      return std::nullopt;
    bytes += static_cast<char>(by_code[code]);
  }
  return bytes;
}

token_decoder::token_decoder(const json_place& place) {
  if (!place.is_null())
    add(place, true);
}

void token_decoder::add(const json_place& place, bool single) {
  const auto type = place.type();
  if (type == "ByteLevel" && kind_ == kind::none) {
    kind_ = kind::bytes;
    return;
  }
  if (kind_ == kind::bytes)
    place["type"].fail("supported is ByteLevel as the only decoder");
  kind_ = kind::text;
  if (type == "Sequence" && single) {
    const auto list = place["decoders"];
    kind_ = kind::none;
    for (std::size_t i = 0; i < list.size(); ++i)
      add(list.at(i), false);
  } else if (type == "Replace") {
    const auto what = place["pattern"]["String"];
    if (what.text().empty())
      what.fail("expected something to look for");
    replace_.emplace_back(what.text(), place["content"].text());
  } else if (type == "ByteFallback") {
    byte_fallback_ = true;
  } else if (type == "Strip") {
    const auto start = place["start"], stop = place["stop"];
    strip_ = place["content"].text();
    strip_count_ = start.id();
    if (stop.id() != 0 || strip_.empty() || !fused_)
      place.fail("supported is Strip after Fuse, at the start");
  } else if (type == "Fuse") {
    fused_ = true;
  } else {
    place["type"].fail("supported decoders are ByteLevel, Replace, ByteFallback, Fuse, Strip and "
                       "Sequence");
  }
}

bool token_decoder::is_byte(std::string_view piece) const {
  return byte_fallback_ && piece.size() == 6 && piece.starts_with("<0x") && piece[5] == '>'
         && std::isxdigit(static_cast<unsigned char>(piece[3]))
         && std::isxdigit(static_cast<unsigned char>(piece[4]));
}

std::string token_decoder::bytes_of(std::string_view piece) const {
  if (kind_ == kind::bytes)
    return from_byte_alphabet(piece).value_or(std::string(piece));
  std::string text(piece);
  if (is_byte(piece))
    return std::string(1, static_cast<char>(std::stoi(text.substr(3, 2), nullptr, 16)));
  for (const auto& [what, by] : replace_)
    text = replaced(std::move(text), what, by);
  return text;
}

} // namespace millrace::model
