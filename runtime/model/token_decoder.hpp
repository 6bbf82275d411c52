#pragma once

#include "runtime/model/json_place.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::model {

/// The bytes that a piece of ByteLevel's alphabet stands for (GPT-2's table of printable stand-ins);
/// nothing when a character isn't in that alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view piece);

/// tokenizer.json's `decoder`, as far as byte-level and byte-fallback vocabularies use it: ByteLevel
/// alone, or Replace, ByteFallback, Fuse and Strip in a sequence.
class token_decoder {
public:
  token_decoder() = default;
  /// Throws user_error naming what is not supported.
  explicit token_decoder(const json_place& place);

  /// The bytes that token `piece` adds to a text, wherever it stands.
  [[nodiscard]] std::string bytes_of(std::string_view piece) const;

  /// Copies of this character are taken from a text's begin, `strip_count()` of them at most.
  [[nodiscard]] const std::string& stripped() const { return strip_; }
  [[nodiscard]] int strip_count() const { return strip_count_; }

  /// Whether `piece` is <0xXX>: neighbouring bytes that are no text become U+FFFD, each of them.
  [[nodiscard]] bool is_byte(std::string_view piece) const;

  /// Tokens stand apart in decoded text, as they do where a tokenizer has no decoder.
  [[nodiscard]] bool spaced() const { return kind_ == kind::none; }

private:
  enum class kind { none, bytes, text };
  void add(const json_place& place, bool single);

  kind kind_ = kind::none;
  bool byte_fallback_ = false;
  bool fused_ = false;
  std::vector<std::pair<std::string, std::string>> replace_;
  std::string strip_;
  int strip_count_ = 0;
};

} // namespace millrace::model
