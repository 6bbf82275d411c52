#pragma once

#include "runtime/model/json_place.hpp"
#include "runtime/model/text_pattern.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::model {

/// tokenizer.json's `pre_tokenizer`: cuts text into the words within which tokens are merged.
/// ByteLevel, Split, Digits, Punctuation, Metaspace and sequences of them.
class pre_tokenizer {
public:
  pre_tokenizer() = default; ///< one word
  /// Throws user_error naming what is not supported.
  explicit pre_tokenizer(const json_place& place);

  /// Words are taken as bytes: the alphabet of the vocabulary is that of ByteLevel.
  [[nodiscard]] bool byte_level() const { return byte_level_; }

  /// A text and the words in it, none empty, in order.
  struct words {
    std::string text;
    std::vector<text_span> spans;
  };
  /// `first`: the text begins the input.
  void apply(words& w, bool first) const;

private:
  using step = std::function<void(words&, bool)>;
  void add(const json_place& place, int depth);
  void add_byte_level(const json_place& place);
  void add_split(const json_place& place);
  void add_metaspace(const json_place& place);

  std::vector<step> steps_;
  bool byte_level_ = false;
};

} // namespace millrace::model
