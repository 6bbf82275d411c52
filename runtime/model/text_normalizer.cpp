#include "runtime/model/text_normalizer.hpp"

#include "runtime/model/text_pattern.hpp"
#include "runtime/model/utf8.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string_view>

namespace millrace::model {
namespace {

struct code_range {
  std::uint32_t first, last;
};

/// Characters that decompose, compose or are reordered, and came after Unicode 9. The tokenizers
/// package, and so every vocabulary made with it, has the tables of Unicode 9: it leaves them alone.
constexpr code_range after_unicode_9[] = {
  {0x7FD, 0x7FD}, {0x898, 0x89F}, {0x8CA, 0x8D3}, {0x9FE, 0x9FE}, {0xC3C, 0xC3C}, {0xD3B, 0xD3C},
  {0xEBA, 0xEBA}, {0x1715, 0x1715}, {0x1ABF, 0x1ACE}, {0x1DF6, 0x1DFA}, {0x32FF, 0x32FF},
  {0xA7F2, 0xA7F4}, {0xA82C, 0xA82C}, {0xAB69, 0xAB69}, {0x10781, 0x10785}, {0x10787, 0x107B0},
  {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
  {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
  {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11935, 0x11935},
  {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
  {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
  {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1},
  {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
  {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

bool is_after_unicode_9(std::uint32_t code) {
  const auto* found = std::ranges::lower_bound(after_unicode_9, code, {}, &code_range::last);
  return found != std::end(after_unicode_9) && found->first <= code;
}

void append_form(std::string& out, std::string_view text, int flags) {
  utf8proc_uint8_t* form = nullptr;
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &form,
                                 static_cast<utf8proc_option_t>(flags | UTF8PROC_STABLE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(form, &std::free);
  if (size < 0)
    throw user_error(std::string("tokenizer: text can't be normalised: ")
                     + utf8proc_errmsg(size));
  out.append(reinterpret_cast<const char*>(form), static_cast<std::size_t>(size));
}

std::string unicode_form(std::string text, int flags) {
  // Below U+0300 nothing composes; below U+0080 nothing decomposes either.
  const unsigned char least = flags == UTF8PROC_COMPOSE ? 0xCC : 0x80;
  if (std::ranges::all_of(text, [&](char c) { return static_cast<unsigned char>(c) < least; }))
    return text;
  std::string out;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto here = at;
    if (!is_after_unicode_9(next_code_point(text, at)))
      continue;
    append_form(out, std::string_view(text).substr(begin, here - begin), flags);
    out.append(text, here, at - here);
    begin = at;
  }
  append_form(out, std::string_view(text).substr(begin), flags);
  return out;
}

} // namespace

text_normalizer::text_normalizer(const json_place& place) {
  if (!place.is_null())
    add(place, 0);
}

void text_normalizer::add(const json_place& place, int depth) {
  const auto type = place.type();
  const std::pair<const char*, int> forms[] = {
    {"NFC", UTF8PROC_COMPOSE},
    {"NFD", UTF8PROC_DECOMPOSE},
    {"NFKC", UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
    {"NFKD", UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}};
  for (const auto& [name, flags] : forms)
    if (type == name) {
      steps_.emplace_back([flags = flags](std::string t) {
        return unicode_form(std::move(t), flags);
      });
      return;
    }
  if (type == "Sequence" && depth < 8) {
    const auto list = place["normalizers"];
    for (std::size_t i = 0; i < list.size(); ++i)
      add(list.at(i), depth + 1);
  } else if (type == "Prepend") {
    steps_.emplace_back([what = place["prepend"].text()](std::string t) {
      return t.empty() ? t : what + t;
    });
  } else if (type == "Replace") {
    steps_.emplace_back([pattern = text_pattern(place["pattern"]),
                         by = place["content"].text()](std::string t) {
      std::vector<text_span> matches;
      pattern.find_all(t, matches);
      std::string out;
      std::size_t at = 0;
      for (const auto m : matches) {
        out.append(t, at, m.begin - at).append(by);
        at = m.end;
      }
      return out.append(t, at);
    });
  } else {
    place["type"].fail("supported normalizers are NFC, NFD, NFKC, NFKD, Prepend, Replace and "
                       "Sequence");
  }
}

std::string text_normalizer::apply(std::string text) const {
  for (const auto& step : steps_)
    text = step(std::move(text));
  return text;
}

} // namespace millrace::model
