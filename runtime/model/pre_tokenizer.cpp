#include "runtime/model/pre_tokenizer.hpp"

#include <algorithm>
#include <array>

namespace millrace::model {
namespace {

/// What becomes of the matches of a split (tokenizers' SplitDelimiterBehavior).
enum class behavior { removed, isolated, with_previous, with_next, contiguous };

behavior behavior_of(const json_place& place) {
  constexpr std::array known{"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                             "Contiguous"};
  const auto& name = place.text();
  for (std::size_t i = 0; i < known.size(); ++i)
    if (name == known[i])
      return static_cast<behavior>(i);
  place.fail("expected Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

struct piece {
  text_span span;
  bool match;
};

/// Joins or drops the pieces of one word as `how` says, and appends what is left to `out`.
void combine(const std::vector<piece>& pieces, behavior how, std::vector<text_span>& out) {
  const auto first = out.size();
  const auto join_or_add = [&](const text_span& s, bool join) {
    if (join && out.size() > first)
      out.back().end = s.end;
    else
      out.push_back(s);
  };
  bool previous = false;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto& [span, match] = pieces[i];
    switch (how) {
      case behavior::removed:
        if (!match)
          out.push_back(span);
        break;
      case behavior::isolated: out.push_back(span); break;
      case behavior::contiguous: join_or_add(span, i > 0 && match == previous); break;
      case behavior::with_previous: join_or_add(span, match && !previous); break;
      case behavior::with_next: join_or_add(span, !match && previous); break;
    }
    previous = match;
  }
}

/// Cuts every word at the matches of a pattern.
class splitter {
public:
  splitter(text_pattern pattern, behavior how, bool invert)
    : pattern_(std::move(pattern)), how_(how), invert_(invert) {}

  void operator()(pre_tokenizer::words& w, bool /*first*/) const {
    std::vector<text_span> out, matches;
    std::vector<piece> pieces;
    for (const auto word : w.spans) {
      pattern_.find_all(std::string_view(w.text).substr(word.begin, word.end - word.begin), matches);
      pieces.clear();
      std::size_t at = word.begin;
      for (const auto m : matches) {
        if (word.begin + m.begin > at)
          pieces.push_back({{at, word.begin + m.begin}, invert_});
        at = word.begin + m.end;
        pieces.push_back({{word.begin + m.begin, at}, !invert_});
      }
      if (at < word.end)
        pieces.push_back({{at, word.end}, invert_});
      combine(pieces, how_, out);
    }
    w.spans = std::move(out);
  }

private:
  text_pattern pattern_;
  behavior how_;
  bool invert_;
};

/// Puts `what` before every word for which `wanted` holds.
template <class Wanted>
void prepend(pre_tokenizer::words& w, std::string_view what, Wanted&& wanted) {
  std::string text;
  text.reserve(w.text.size() + what.size());
  for (auto& s : w.spans) {
    const auto word = std::string_view(w.text).substr(s.begin, s.end - s.begin);
    const auto begin = text.size();
    if (wanted(word, s.begin == 0))
      text += what;
    text += word;
    s = {begin, text.size()};
  }
  w.text = std::move(text);
}

} // namespace

pre_tokenizer::pre_tokenizer(const json_place& place) {
  if (!place.is_null())
    add(place, 0);
}

void pre_tokenizer::add(const json_place& place, int depth) {
  const auto type = place.type();
  if (byte_level_)
    place["type"].fail("supported is ByteLevel as the last pre-tokenizer only");
  if (type == "Sequence" && depth < 8) {
    const auto list = place["pretokenizers"];
    for (std::size_t i = 0; i < list.size(); ++i)
      add(list.at(i), depth + 1);
  } else if (type == "ByteLevel") {
    add_byte_level(place);
  } else if (type == "Split") {
    add_split(place);
  } else if (type == "Digits") {
    const bool single = place["individual_digits"].flag(false);
    steps_.emplace_back(splitter(text_pattern::regex("\\p{N}"),
                                 single ? behavior::isolated : behavior::contiguous, false));
  } else if (type == "Punctuation") {
    const auto how = place["behavior"];
    steps_.emplace_back(splitter(text_pattern::regex("[\\p{P}$+<=>^`|~]"),
                                 how.is_null() ? behavior::isolated : behavior_of(how), false));
  } else if (type == "Metaspace") {
    add_metaspace(place);
  } else {
    place["type"].fail("supported pre-tokenizers are ByteLevel, Split, Digits, Punctuation, "
                       "Metaspace and Sequence");
  }
}

void pre_tokenizer::add_byte_level(const json_place& place) {
  byte_level_ = true;
  if (place["add_prefix_space"].flag(true))
    steps_.emplace_back([](words& w, bool /*first*/) {
      prepend(w, " ", [](std::string_view word, bool) { return word[0] != ' '; });
    });
  if (place["use_regex"].flag(true))
    steps_.emplace_back(splitter(
      text_pattern::regex("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                          "|\\s+(?!\\S)|\\s+"),
      behavior::isolated, false));
}

void pre_tokenizer::add_split(const json_place& place) {
  steps_.emplace_back(splitter(text_pattern(place["pattern"]), behavior_of(place["behavior"]),
                               place["invert"].flag(false)));
}

void pre_tokenizer::add_metaspace(const json_place& place) {
  const auto mark = place["replacement"].text();
  if (mark.empty())
    place["replacement"].fail("expected a character");
  const auto scheme = place["prepend_scheme"];
  const auto when = scheme.is_null() ? (place["add_prefix_space"].flag(true) ? "always" : "never")
                                     : scheme.text();
  if (when != "always" && when != "never" && when != "first")
    scheme.fail("expected always, never or first");
  steps_.emplace_back([mark, when](words& w, bool first) {
    std::string text;
    for (auto& s : w.spans) {
      const auto begin = text.size();
      for (auto i = s.begin; i < s.end; ++i)
        w.text[i] == ' ' ? text += mark : text += w.text[i];
      s = {begin, text.size()};
    }
    w.text = std::move(text);
    if (when != "never")
      prepend(w, mark, [&](std::string_view word, bool leads) {
        return !word.starts_with(mark) && (when == "always" || (first && leads));
      });
  });
  if (place["split"].flag(true)) {
    const nlohmann::json literal{{"String", mark}};
    steps_.emplace_back(splitter(text_pattern(json_place(literal, place.where())),
                                 behavior::with_next, false));
  }
}

void pre_tokenizer::apply(words& w, bool first) const {
  w.spans.clear();
  if (w.text.empty())
    return;
  w.spans.push_back({0, w.text.size()});
  for (const auto& step : steps_)
    step(w, first);
}

} // namespace millrace::model
