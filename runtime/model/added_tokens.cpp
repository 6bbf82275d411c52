#include "runtime/model/added_tokens.hpp"

#include "runtime/model/utf8.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <functional>

namespace millrace::model {
namespace {

/// Where the character before `at` begins.
std::size_t character_before(std::string_view text, std::size_t at) {
  do
    --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

bool is_word(std::string_view text, std::size_t at) {
  const auto code = next_code_point(text, at);
  if (code == not_utf8)
    return false;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM: case UTF8PROC_CATEGORY_LO: case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME: case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

bool within_word(std::string_view text, std::size_t begin, std::size_t end) {
  return (begin > 0 && is_word(text, character_before(text, begin)))
         || (end < text.size() && is_word(text, end));
}

std::size_t spaces_begin(std::string_view text, std::size_t at) {
  while (at > 0) {
    const auto before = character_before(text, at);
    auto after = before;
    if (!is_white_space(next_code_point(text, after)))
      break;
    at = before;
  }
  return at;
}

std::size_t spaces_end(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    auto after = at;
    if (!is_white_space(next_code_point(text, after)))
      break;
    at = after;
  }
  return at;
}

} // namespace

added_tokens::added_tokens(const json_place& list, const text_normalizer& normalizer) {
  if (list.is_null())
    return;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto entry = list.at(i);
    added_token t;
    t.id = entry["id"].id();
    t.content = entry["content"].text();
    if (t.content.empty())
      entry["content"].fail("expected a token's text");
    t.single_word = entry["single_word"].flag(false);
    t.lstrip = entry["lstrip"].flag(false);
    t.rstrip = entry["rstrip"].flag(false);
    t.special = entry["special"].flag(false);
    t.normalized = entry["normalized"].flag(!t.special);
    auto text = t.normalized ? normalizer.apply(t.content) : t.content;
    auto& table = t.normalized ? normalized_ : raw_;
    if (!text.empty())
      table[static_cast<unsigned char>(text[0])].push_back({std::move(text), all_.size()});
    all_.push_back(std::move(t));
  }
  for (auto* table : {&raw_, &normalized_})
    for (auto& same_begin : *table)
      std::ranges::stable_sort(same_begin, std::greater<>{},
                               [](const needle& n) { return n.text.size(); });
}

std::vector<text_part> added_tokens::split(std::string_view text, bool normalized,
                                           bool special) const {
  std::vector<text_part> parts;
  const auto& table = normalized ? normalized_ : raw_;
  std::size_t done = 0;
  const auto match_at = [&](std::size_t at) -> const needle* {
    for (const auto& n : table[static_cast<unsigned char>(text[at])])
      if (text.compare(at, n.text.size(), n.text) == 0)
        return &n;
    return nullptr;
  };
  for (std::size_t at = 0; at < text.size();) {
    const auto* found = match_at(at);
    if (!found) {
      ++at;
      continue;
    }
    const auto& token = all_[found->token];
    auto begin = at;
    auto end = at += found->text.size();
    if ((token.special && !special) || (token.single_word && within_word(text, begin, end)))
      continue;
    if (token.lstrip)
      begin = std::max(spaces_begin(text, begin), done);
    if (token.rstrip)
      end = spaces_end(text, end);
    if (done < begin)
      parts.push_back({text.substr(done, begin - done)});
    parts.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size())
    parts.push_back({text.substr(done)});
  return parts;
}

} // namespace millrace::model
