#include "runtime/model/text_pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cctype>

namespace millrace::model {
namespace {

/// White_Space, as members of a class. PCRE2's own \s has U+180E besides.
constexpr const char* white_space =
  "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
  "\\x{205f}\\x{3000}";
constexpr const char* word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

/// Ruby's syntax of a regular expression to PCRE2's.
class translator {
public:
  translator(const std::string& from, const json_place& place) : from_(from), place_(place) {}

  std::string run() {
    while (at_ < from_.size()) {
      const char c = from_[at_];
      if (c == '\\')
        escape();
      else if (in_class_)
        class_member(c);
      else
        plain(c);
    }
    return std::move(to_);
  }

private:
  [[noreturn]] void refuse(const std::string& what) const {
    place_.fail(what + " is not supported in regular expressions here");
  }

  char peek(std::size_t ahead) const {
    return at_ + ahead < from_.size() ? from_[at_ + ahead] : '\0';
  }

  void plain(char c) {
    if (c == '[') {
      in_class_ = true;
      to_ += from_[at_++];
      if (peek(0) == '^')
        to_ += from_[at_++];
      if (peek(0) == ']') // a member, as the first one
        to_ += "\\]", ++at_;
      return;
    }
    if (c == '(' && peek(1) == '?')
      group();
    to_ += from_[at_++];
  }

  /// Flags other than i mean something else in Ruby.
  void group() const {
    for (auto i = at_ + 2; i < from_.size() && std::string_view(":=!<>)").find(from_[i])
                                                 == std::string_view::npos; ++i)
      if (from_[i] != 'i' && from_[i] != '-')
        refuse(std::string("the group (?") + from_[i] + "…");
  }

  void class_member(char c) {
    if (c == ']')
      in_class_ = false;
    else if (c == '[')
      refuse("a class within a class");
    else if (c == '&' && peek(1) == '&')
      refuse("&& (intersection of classes)");
    to_ += from_[at_++];
  }

  void set(const char* members, bool negated) {
    if (in_class_ && negated)
      refuse("a negated class within a class");
    to_ += in_class_ ? std::string(members)
                     : std::string(negated ? "[^" : "[") + members + "]";
  }

  void escape() {
    const char c = peek(1);
    at_ += 2;
    switch (c) {
      case '\0': refuse("a \\ at the end");
      case 's': return set(white_space, false);
      case 'S': return set(white_space, true);
      case 'w': return set(word, false);
      case 'W': return set(word, true);
      case 'd': case 'D': case 'n': case 'r': case 't': case 'f': case 'A': case 'z': case 'x':
        to_ += {'\\', c};
        return;
      case 'v':
        to_ += "\\x{b}";
        return;
      case 'p': case 'P': return property(c);
      case 'u': return code_unit();
      default:
        if (std::isalnum(static_cast<unsigned char>(c)))
          refuse(std::string("\\") + c);
        to_ += {'\\', c};
    }
  }

  /// General categories are the same in both; PCRE2 reads a script's name as Script_Extensions.
  void property(char p) {
    const auto close = from_.find('}', at_);
    if (peek(0) != '{' || close == std::string::npos)
      refuse(std::string("\\") + p + " without {…}");
    auto name = from_.substr(at_ + 1, close - at_ - 1);
    at_ = close + 1;
    const bool negated = !name.empty() && name[0] == '^';
    if (negated)
      name.erase(0, 1);
    if (name.size() > 2 && name != "Any")
      name = (name == "Alphabetic" || name == "White_Space" ? "" : "sc:") + name;
    to_ += std::string("\\") + p + "{" + (negated ? "^" : "") + name + "}";
  }

  void code_unit() {
    const auto digits = from_.substr(at_, 4);
    for (const char d : digits)
      if (digits.size() < 4 || !std::isxdigit(static_cast<unsigned char>(d)))
        refuse("\\u without four hexadecimal digits");
    at_ += 4;
    to_ += "\\x{" + digits + "}";
  }

  const std::string& from_;
  const json_place& place_;
  std::string to_;
  std::size_t at_ = 0;
  bool in_class_ = false;
};

struct match_memory {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  ~match_memory() { pcre2_match_data_free(data); }
};

} // namespace

text_pattern::text_pattern(const json_place& place) {
  if (const auto literal = place["String"]; !literal.is_null()) {
    literal_ = literal.text();
    if (literal_.empty())
      literal.fail("expected something to look for");
    return;
  }
  const auto regex = place["Regex"];
  if (regex.is_null())
    place.fail("expected a \"String\" or a \"Regex\"");
  compile(translator(regex.text(), regex).run(), regex);
}

text_pattern text_pattern::regex(const std::string& expression) {
  text_pattern p;
  const nlohmann::json shown = expression;
  const json_place place(shown, "a built-in expression");
  p.compile(translator(expression, place).run(), place);
  return p;
}

void text_pattern::compile(const std::string& expression, const json_place& place) {
  expression_ = expression;
  int error = 0;
  PCRE2_SIZE offset = 0;
  // In Ruby's syntax ^ and $ match at every line.
  auto* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, nullptr);
  if (!code) {
    std::array<PCRE2_UCHAR, 160> said{};
    pcre2_get_error_message(error, said.data(), said.size());
    place.fail("not a regular expression that is supported: "
               + std::string(reinterpret_cast<const char*>(said.data())));
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); // where it can't, matching is only slower
  code_ = {code, [](const void* p) {
             pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p)));
           }};
}

void text_pattern::find_all(std::string_view text, std::vector<text_span>& matches) const {
  matches.clear();
  if (!code_) {
    for (auto at = text.find(literal_); at != text.npos; at = text.find(literal_, at)) {
      matches.push_back({at, at + literal_.size()});
      at += literal_.size();
    }
    return;
  }
  thread_local const match_memory memory;
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (std::size_t at = 0; at < text.size();) {
    auto found = pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, memory.data,
                             nullptr);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
      found = pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                          memory.data, nullptr);
    if (found == PCRE2_ERROR_NOMATCH)
      return;
    if (found < 0)
      throw user_error("tokenizer: its expression " + expression_ + " can't be matched against a "
                       "text of " + std::to_string(text.size()) + " bytes (PCRE2 error "
                       + std::to_string(found) + "); is the text one endless word?");
    const auto* where = pcre2_get_ovector_pointer(memory.data);
    if (where[1] > where[0]) {
      matches.push_back({where[0], where[1]});
      at = where[1];
    } else { // empty: past one character
      at = where[1] + 1;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80)
        ++at;
    }
  }
}

} // namespace millrace::model
