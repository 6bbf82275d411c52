#include "runtime/model/jinja_lexer.hpp"

#include "runtime/error.hpp"

#include <algorithm>
#include <cctype>

namespace millrace::model::jinja {
namespace {

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

class lexer {
public:
  lexer(std::string_view text, const std::string& where) : where_(where) {
    // As Jinja reads it: \r\n and \r are line ends, and the last one doesn't count.
    for (std::size_t i = 0; i < text.size(); ++i)
      if (text[i] != '\r')
        text_ += text[i];
      else if (i + 1 >= text.size() || text[i + 1] != '\n')
        text_ += '\n';
    if (text_.ends_with('\n'))
      text_.pop_back();
  }

  std::vector<token> run() {
    while (at_ < text_.size())
      outside();
    add(token::kind::end, "");
    return std::move(tokens_);
  }

private:
  [[noreturn]] void fail(const std::string& what) const {
    throw user_error(where_ + ", line " + std::to_string(line_) + ": " + what);
  }

  void add(token::kind is, std::string text) { tokens_.push_back({is, std::move(text), line_}); }

  void move_to(std::size_t to) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  /// Text up to the next brace that opens something, and what it opens.
  void outside() {
    auto open = at_;
    for (;; ++open) {
      open = text_.find('{', open);
      if (open == text_.npos || open + 1 >= text_.size()) {
        open = text_.size();
        break;
      }
      if (std::string_view("{%#").find(text_[open + 1]) != std::string_view::npos)
        break;
    }
    const char type = open < text_.size() ? text_[open + 1] : '\0';
    const char sign = open + 2 < text_.size() ? text_[open + 2] : '\0';
    auto end = open;
    if (type != '\0' && sign == '-')
      while (end > at_ && is_space(text_[end - 1]))
        --end;
    else if ((type == '%' || type == '#') && sign != '+')
      end = without_indentation(end);
    if (end > at_)
      add(token::kind::text, text_.substr(at_, end - at_));
    move_to(open);
    if (type == '#')
      comment();
    else if (type != '\0')
      inside(type == '{' ? "{{" : "{%", type == '{' ? "}}" : "%}", sign == '-' || sign == '+');
  }

  /// lstrip_blocks: spaces between the line's begin and a block are not text.
  std::size_t without_indentation(std::size_t end) const {
    auto begin = end;
    while (begin > at_ && (text_[begin - 1] == ' ' || text_[begin - 1] == '\t'))
      --begin;
    const bool line_begins = begin > 0 ? text_[begin - 1] == '\n' : true;
    return line_begins ? begin : end;
  }

  /// After a closing brace. trim_blocks: a block takes the line end with it.
  void after(char sign, bool block) {
    if (sign == '-') {
      auto to = at_;
      while (to < text_.size() && is_space(text_[to]))
        ++to;
      move_to(to);
    } else if (block && sign != '+' && peek() == '\n') {
      move_to(at_ + 1);
    }
  }

  void comment() {
    const auto close = text_.find("#}", at_ + 2);
    if (close == text_.npos)
      fail("the comment {# is never closed");
    const char sign = close > at_ + 2 ? text_[close - 1] : '\0';
    move_to(close + 2);
    after(sign, true);
  }

  void inside(const std::string& open, const std::string& close, bool has_sign) {
    add(token::kind::symbol, open);
    move_to(at_ + (has_sign ? 3 : 2));
    std::string brackets;
    for (;;) {
      while (is_space(peek()) && at_ < text_.size())
        move_to(at_ + 1);
      if (at_ >= text_.size())
        fail(open + " is never closed");
      const char sign = peek();
      const bool signed_close = (sign == '-' || (sign == '+' && close == "%}"))
                                && text_.compare(at_ + 1, 2, close) == 0;
      if (brackets.empty() && (signed_close || text_.compare(at_, 2, close) == 0)) {
        add(token::kind::symbol, close);
        move_to(at_ + (signed_close ? 3 : 2));
        after(signed_close ? sign : '\0', close == "%}");
        return;
      }
      one(brackets);
    }
  }

  void one(std::string& brackets) {
    const char c = peek();
    if (c == '"' || c == '\'')
      return string(c);
    if (is_digit(c))
      return number();
    if (is_word(c)) {
      auto to = at_;
      while (to < text_.size() && is_word(text_[to]))
        ++to;
      add(token::kind::word, text_.substr(at_, to - at_));
      return move_to(to);
    }
    for (const char* two : {"==", "!=", "<=", ">=", "//", "**"})
      if (text_.compare(at_, 2, two) == 0) {
        add(token::kind::symbol, two);
        return move_to(at_ + 2);
      }
    if (std::string_view("+-*/%~=<>|.,:()[]{}").find(c) == std::string_view::npos)
      fail(std::string("\"") + c + "\" is not expected here");
    if (c == '(' || c == '[' || c == '{')
      brackets += c;
    else if ((c == ')' || c == ']' || c == '}') && !brackets.empty())
      brackets.pop_back();
    add(token::kind::symbol, std::string(1, c));
    move_to(at_ + 1);
  }

  void number() {
    auto to = at_;
    while (to < text_.size() && (is_digit(text_[to]) || text_[to] == '_'))
      ++to;
    if (to + 1 < text_.size() && text_[to] == '.' && is_digit(text_[to + 1]))
      for (++to; to < text_.size() && is_digit(text_[to]);)
        ++to;
    auto digits = text_.substr(at_, to - at_);
    std::erase(digits, '_');
    add(token::kind::number, digits);
    move_to(to);
  }

  void string(char quote) {
    std::string meaning;
    auto to = at_ + 1;
    for (; to < text_.size() && text_[to] != quote; ++to) {
      if (text_[to] != '\\' || to + 1 >= text_.size()) {
        meaning += text_[to];
        continue;
      }
      const char c = text_[++to];
      switch (c) {
        case 'n': meaning += '\n'; break;
        case 't': meaning += '\t'; break;
        case 'r': meaning += '\r'; break;
        case '\\': case '\'': case '"': meaning += c; break;
        case 'u': case 'x': case 'N': case 'U':
          fail(std::string("\\") + c + " in strings is not supported");
        default: meaning += {'\\', c};
      }
    }
    if (to >= text_.size())
      fail("a string is never closed");
    add(token::kind::string, meaning);
    move_to(to + 1);
  }

  const std::string& where_;
  std::string text_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<token> tokens_;
};

} // namespace

std::vector<token> tokens_of(std::string_view text, const std::string& where) {
  return lexer(text, where).run();
}

} // namespace millrace::model::jinja
