#pragma once

#include "runtime/model/stream_decoder.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace::model {

/// The text of an answer as its tokens come, with the strings that end it. What may be the begin of
/// such a string is held back until it is known not to be; the string itself is never shown.
class answer_text {
public:
  /// `tokens` must outlive it. Empty stop strings are ignored.
  explicit answer_text(const tokenizer& tokens, std::vector<std::string> stops = {});

  /// Text that may be shown now. Nothing after the text has stopped. With `may_stop` false a stop
  /// string that ends in this token is text like any other.
  std::string add(std::int32_t token, bool may_stop = true);
  /// What was held back, when the answer ended otherwise.
  std::string finish();

  /// A stop string has come.
  [[nodiscard]] bool stopped() const { return stopped_; }
  /// All text so far, up to the stop string.
  [[nodiscard]] const std::string& text() const { return text_; }

private:
  std::string shown(bool may_stop, bool last);
  [[nodiscard]] std::size_t first_stop(std::size_t from) const;
  [[nodiscard]] std::size_t open_begin() const;

  stream_decoder decoder_;
  std::vector<std::string> stops_;
  std::size_t longest_ = 0;
  std::string text_;
  std::size_t passed_ = 0; ///< bytes in which no stop string can begin any more
  std::size_t shown_ = 0;  ///< bytes that add() has returned
  bool stopped_ = false;
};

} // namespace millrace::model
