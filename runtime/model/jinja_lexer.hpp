#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace::model::jinja {

struct token {
  enum class kind {
    text,   ///< outside of the braces, white space control done
    symbol, ///< {{ }} {% %} and operators
    word, string, number, end
  };
  kind is = kind::end;
  std::string text; ///< of a string, what it means
  int line = 0;
};

/// The last one is `end`. Throws user_error naming `where` and the line.
std::vector<token> tokens_of(std::string_view text, const std::string& where);

} // namespace millrace::model::jinja
