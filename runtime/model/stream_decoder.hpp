#pragma once

#include "runtime/model/tokenizer.hpp"
#include "runtime/model/utf8.hpp"

#include <cstdint>
#include <string>

namespace millrace::model {

/// Text of tokens that come one at a time. Never gives part of a character: a token that ends within
/// one is held back until the rest is there, or can't be any more (U+FFFD then). What add() and
/// finish() return, joined, is what decode() gives for all tokens at once; only where a byte-fallback
/// vocabulary spells bytes that are no text may the number of U+FFFD differ.
class stream_decoder {
public:
  /// `tokens` must outlive it.
  explicit stream_decoder(const tokenizer& tokens);

  std::string add(std::int32_t token);
  std::string finish();

private:
  std::string stripped_of(std::string text);

  const tokenizer* tokens_;
  utf8_joiner joiner_;
  std::string strip_;
  int strips_left_ = 0;
};

} // namespace millrace::model
