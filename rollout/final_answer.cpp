#include "rollout/final_answer.hpp"

namespace millrace {

namespace {

/// The content up to the bracket that closes the one before `text`; nothing when none does.
std::optional<std::string_view> bracketed(std::string_view text) {
  int depth = 1;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\')
      ++i; // \{ and \} are signs, not brackets
    else if (text[i] == '{')
      ++depth;
    else if (text[i] == '}' && --depth == 0)
      return text.substr(0, i);
  }
  return {};
}

} // namespace

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view space = " \t\r\n\v\f";
  const auto from = text.find_first_not_of(space);
  if (from == std::string_view::npos)
    return {};
  return text.substr(from, text.find_last_not_of(space) - from + 1);
}

std::optional<std::string_view> marked_answer(std::string_view text) {
  constexpr std::string_view hashes = "####", boxed = "\\boxed{";
  const auto hash = text.rfind(hashes);
  const auto box = text.rfind(boxed);
  if (box != std::string_view::npos && (hash == std::string_view::npos || box > hash)) {
    if (auto inside = bracketed(text.substr(box + boxed.size())))
      return trimmed(*inside);
    return {};
  }
  if (hash == std::string_view::npos)
    return {};
  const auto line = text.substr(hash + hashes.size());
  return trimmed(line.substr(0, line.find('\n')));
}

} // namespace millrace
