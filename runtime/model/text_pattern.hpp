#pragma once

#include "runtime/model/json_place.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::model {

/// Bytes begin … end − 1 of a text.
struct text_span {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// What a tokenizer file looks for in text: {"String": "…"} or {"Regex": "…"}. The latter is
/// written for Oniguruma's Ruby syntax; it is translated to PCRE2 with Unicode classes, and refused
/// where the two would differ.
class text_pattern {
public:
  /// Throws user_error for a pattern that doesn't compile or isn't supported.
  explicit text_pattern(const json_place& place);
  /// A regular expression of our own.
  static text_pattern regex(const std::string& expression);

  /// All matches in order, empty ones left out. `text` is UTF-8. Throws user_error when the text
  /// drives the expression beyond PCRE2's limits.
  void find_all(std::string_view text, std::vector<text_span>& matches) const;

private:
  text_pattern() = default;
  void compile(const std::string& expression, const json_place& place);

  std::string literal_;
  std::string expression_;
  std::shared_ptr<const void> code_; ///< pcre2_code, null for a literal
};

} // namespace millrace::model
