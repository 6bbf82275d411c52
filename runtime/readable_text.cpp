#include "runtime/readable_text.hpp"

#include <nlohmann/json.hpp>

namespace millrace {

namespace {

bool continues(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

} // namespace

std::string readable(std::string_view bytes, std::size_t longest) {
  auto kept = bytes.substr(0, longest);
  if (kept.size() < bytes.size()) // no character is cut in two; four bytes are the most it can have
    for (int i = 0; i < 3 && !kept.empty() && continues(bytes[kept.size()]); ++i)
      kept.remove_suffix(1);
  const auto valid = nlohmann::json::parse(nlohmann::json(std::string(kept))
                                             .dump(-1, ' ', false,
                                                   nlohmann::json::error_handler_t::replace))
                       .get<std::string>();
  std::string out;
  for (std::size_t i = 0; i < valid.size(); ++i) {
    const auto c = static_cast<unsigned char>(valid[i]);
    const bool c1 = c == 0xC2 && static_cast<unsigned char>(valid[i + 1]) < 0xA0; // U+0080 … U+009F
    out += c < 0x20 || c == 0x7F || c1 ? ' ' : valid[i];
    i += c1 ? 1 : 0;
  }
  return kept.size() < bytes.size() ? out + "..." : out;
}

} // namespace millrace
