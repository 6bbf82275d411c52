#pragma once

#include "runtime/model/json_place.hpp"
#include "runtime/model/text_normalizer.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::model {

/// A token that is found in text before anything else is done with it.
struct added_token {
  std::string content;
  std::int32_t id = -1;
  bool single_word = false; ///< not within a word
  bool lstrip = false;      ///< takes the white space on its left with it
  bool rstrip = false;
  bool normalized = false;  ///< looked for in normalised text
  bool special = false;     ///< not part of decoded text
};

/// A part of a text: an added token, or text between them (id −1).
struct text_part {
  std::string_view text;
  std::int32_t id = -1;
};

/// tokenizer.json's `added_tokens`.
class added_tokens {
public:
  added_tokens() = default;
  /// Throws user_error naming the entry that is wrong.
  added_tokens(const json_place& list, const text_normalizer& normalizer);

  [[nodiscard]] const std::vector<added_token>& all() const { return all_; }

  /// Cuts text at the tokens that are looked for before normalising (`normalized` false) or after.
  /// With `special` false special tokens' names are text like any other.
  [[nodiscard]] std::vector<text_part> split(std::string_view text, bool normalized,
                                             bool special) const;

private:
  struct needle {
    std::string text;
    std::size_t token; ///< index in all_
  };
  /// By first byte, the longest first.
  using needles = std::array<std::vector<needle>, 256>;

  std::vector<added_token> all_;
  needles raw_, normalized_;
};

} // namespace millrace::model
