#include "runtime/model/jinja_parser.hpp"

#include "runtime/error.hpp"
#include "runtime/model/jinja_lexer.hpp"

#include <algorithm>
#include <charconv>
#include <initializer_list>

namespace millrace::model::jinja {
namespace {

using kind = expression::kind;

class parser {
public:
  parser(std::vector<token> tokens, std::string where)
    : tokens_(std::move(tokens)), where_(std::move(where)) {}

  block whole() {
    auto all = body({});
    if (now().is != token::kind::end)
      fail("{% " + now().text + " %} stands alone");
    return all;
  }

private:
  [[noreturn]] void fail(const std::string& what) const {
    throw user_error(where_ + ", line " + std::to_string(now().line) + ": " + what);
  }

  const token& now() const { return tokens_[at_]; }
  const token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool sees(std::string_view text, token::kind is = token::kind::symbol) const {
    return now().is == is && now().text == text;
  }
  bool sees_word(std::string_view text) const { return sees(text, token::kind::word); }
  bool takes(std::string_view symbol) {
    const bool there = sees(symbol);
    at_ += there ? 1 : 0;
    return there;
  }
  bool takes_word(std::string_view word) {
    const bool there = sees_word(word);
    at_ += there ? 1 : 0;
    return there;
  }
  void expect(std::string_view symbol) {
    if (!takes(symbol))
      fail("expected \"" + std::string(symbol) + "\", found " + shown());
  }
  std::string shown() const {
    return now().is == token::kind::end ? "the end of the template" : "\"" + now().text + "\"";
  }
  std::string word() {
    if (now().is != token::kind::word)
      fail("expected a name, found " + shown());
    return tokens_[at_++].text;
  }
  /// Templates are small; what is nested without end is an attack on the stack.
  struct nesting {
    explicit nesting(parser& p) : p(p) {
      if (++p.depth_ > 100)
        p.fail("nested more than 100 deep");
    }
    ~nesting() { --p.depth_; }
    parser& p;
  };

  // -- statements -----------------------------------------------------------------------------

  /// Up to one of the words that end it, which is left; or to the template's end.
  block body(std::initializer_list<std::string_view> ends) {
    const nesting deeper(*this);
    block all;
    for (;;) {
      const auto& t = now();
      statement s;
      s.line = t.line;
      if (t.is == token::kind::text) {
        s.name = t.text;
        ++at_;
      } else if (takes("{{")) {
        s.is = statement::kind::print;
        s.value = tuple();
        expect("}}");
      } else if (sees("{%")) {
        if (next().is == token::kind::word
            && std::ranges::find(ends, std::string_view(next().text)) != ends.end())
          return all;
        ++at_;
        if (takes_word("generation")) { // marks what the model wrote; prints it all the same
          expect("%}");
          auto inner = body({"endgeneration"});
          close("endgeneration");
          std::ranges::move(inner, std::back_inserter(all));
          continue;
        }
        directive(s);
      } else {
        if (ends.size() > 0)
          fail("{% " + std::string(*std::prev(ends.end())) + " %} is missing");
        return all;
      }
      all.push_back(std::move(s));
    }
  }

  void close(std::string_view end) {
    expect("{%");
    if (!takes_word(end))
      fail("expected {% " + std::string(end) + " %}, found " + shown());
    expect("%}");
  }

  void directive(statement& s) {
    const auto name = word();
    if (name == "if")
      branch(s);
    else if (name == "for")
      loop(s);
    else if (name == "set")
      set(s);
    else if (name == "break" || name == "continue") {
      if (loops_ == 0)
        fail("{% " + name + " %} outside of a loop");
      s.is = name == "break" ? statement::kind::leave : statement::kind::proceed;
      expect("%}");
    } else {
      fail("{% " + name + " %} is not supported; supported are if, for, set, break and continue");
    }
  }

  void branch(statement& s) {
    s.is = statement::kind::branch;
    s.value = tuple();
    expect("%}");
    s.body = body({"elif", "else", "endif"});
    expect("{%");
    if (takes_word("elif")) {
      statement inner;
      inner.line = now().line;
      branch(inner);
      s.otherwise.push_back(std::move(inner));
      return;
    }
    if (takes_word("else")) {
      expect("%}");
      s.otherwise = body({"endif"});
      expect("{%");
    }
    if (!takes_word("endif"))
      fail("expected {% endif %}, found " + shown());
    expect("%}");
  }

  void loop(statement& s) {
    s.is = statement::kind::loop;
    do
      s.targets.push_back(word());
    while (takes(","));
    if (!takes_word("in"))
      fail("expected \"in\", found " + shown());
    s.value = either();
    if (takes_word("if"))
      s.condition = choice();
    if (takes_word("recursive"))
      fail("recursive loops are not supported");
    expect("%}");
    ++loops_;
    s.body = body({"else", "endfor"});
    --loops_;
    expect("{%");
    if (takes_word("else")) {
      expect("%}");
      s.otherwise = body({"endfor"});
      expect("{%");
    }
    ++at_; // endfor
    expect("%}");
  }

  void set(statement& s) {
    s.targets.push_back(word());
    if (takes("."))
      s.name = word();
    while (takes(",")) {
      if (!s.name.empty())
        fail("a member among several targets is not supported");
      s.targets.push_back(word());
    }
    if (takes("=")) {
      s.is = statement::kind::assign;
      s.value = tuple();
      expect("%}");
      return;
    }
    if (sees("|"))
      fail("filters on {% set %} blocks are not supported");
    s.is = statement::kind::capture;
    expect("%}");
    s.body = body({"endset"});
    close("endset");
  }

  // -- expressions, from the loosest binding on -----------------------------------------------

  expression_ptr make(kind is, std::string name, expression_ptr a = nullptr,
                      expression_ptr b = nullptr, expression_ptr c = nullptr) {
    auto e = std::make_unique<expression>();
    e->is = is;
    e->name = std::move(name);
    e->line = now().line;
    for (auto* part : {&a, &b, &c})
      if (*part)
        adopt(*e, std::move(*part));
    return e;
  }

  void adopt(expression& e, expression_ptr part) {
    deepen(e, part.get());
    e.parts.push_back(std::move(part));
  }
  void deepen(expression& e, const expression* part) {
    e.depth = std::max(e.depth, part ? part->depth + 1 : 0);
    if (e.depth > 300)
      fail("an expression of more than 300 steps");
  }

  /// a, b: a list.
  expression_ptr tuple() {
    auto first = choice();
    if (!sees(","))
      return first;
    auto all = make(kind::list_of, "", std::move(first));
    while (takes(",") && !sees("%}") && !sees("}}") && !sees(")"))
      adopt(*all, choice());
    return all;
  }

  expression_ptr choice() {
    const nesting deeper(*this);
    auto a = either();
    while (takes_word("if")) {
      auto condition = either();
      auto otherwise = takes_word("else") ? choice() : make(kind::name, "nothing");
      a = make(kind::choice, "", std::move(a), std::move(condition), std::move(otherwise));
    }
    return a;
  }

  expression_ptr either() {
    auto a = both();
    while (takes_word("or"))
      a = make(kind::binary, "or", std::move(a), both());
    return a;
  }

  expression_ptr both() {
    auto a = negation();
    while (takes_word("and"))
      a = make(kind::binary, "and", std::move(a), negation());
    return a;
  }

  expression_ptr negation() {
    const nesting deeper(*this);
    return takes_word("not") ? make(kind::unary, "not", negation()) : comparison();
  }

  expression_ptr comparison() {
    auto a = sum();
    for (int count = 0;; ++count) {
      std::string name;
      for (const char* symbol : {"==", "!=", "<=", ">=", "<", ">"})
        if (name.empty() && takes(symbol))
          name = symbol;
      bool negated = false;
      if (name.empty() && sees_word("not") && next().is == token::kind::word
          && next().text == "in") {
        at_ += 2;
        name = "in";
        negated = true;
      } else if (name.empty() && takes_word("in")) {
        name = "in";
      }
      if (name.empty())
        return a;
      if (count > 0)
        fail("chained comparisons are not supported; write them with \"and\"");
      a = make(kind::binary, name, std::move(a), sum());
      if (negated)
        a = make(kind::unary, "not", std::move(a));
    }
  }

  using level = expression_ptr (parser::*)();
  expression_ptr operators(std::initializer_list<const char*> symbols, level tighter) {
    auto a = (this->*tighter)();
    for (;;) {
      const auto found = std::ranges::find_if(symbols, [&](const char* s) { return takes(s); });
      if (found == symbols.end())
        return a;
      a = make(kind::binary, *found, std::move(a), (this->*tighter)());
    }
  }
  expression_ptr sum() { return operators({"+", "-"}, &parser::concatenation); }
  expression_ptr concatenation() { return operators({"~"}, &parser::product); }
  expression_ptr product() { return operators({"*", "//", "/", "%"}, &parser::power); }
  expression_ptr power() { return operators({"**"}, &parser::signed_value); }

  expression_ptr signed_value() {
    const nesting deeper(*this);
    for (const char* sign : {"-", "+"})
      if (takes(sign))
        return filtered(make(kind::unary, sign, unfiltered()));
    return filtered(postfix(primary()));
  }
  expression_ptr unfiltered() {
    const nesting deeper(*this);
    for (const char* sign : {"-", "+"})
      if (takes(sign))
        return make(kind::unary, sign, unfiltered());
    return postfix(primary());
  }

  expression_ptr literal(value v) {
    auto e = make(kind::literal, "");
    e->constant = std::move(v);
    return e;
  }

  expression_ptr primary() {
    const auto& t = now();
    ++at_;
    switch (t.is) {
      case token::kind::word:
        if (t.text == "true" || t.text == "True")
          return literal(true);
        if (t.text == "false" || t.text == "False")
          return literal(false);
        if (t.text == "none" || t.text == "None")
          return literal(none{});
        return make(kind::name, t.text);
      case token::kind::string: {
        auto text = t.text;
        while (now().is == token::kind::string)
          text += tokens_[at_++].text;
        return literal(text);
      }
      case token::kind::number: return number(t.text);
      case token::kind::symbol:
        if (t.text == "(") {
          if (takes(")"))
            return make(kind::list_of, "");
          auto inside = tuple();
          expect(")");
          return inside;
        }
        if (t.text == "[")
          return list_literal();
        if (t.text == "{")
          return mapping_literal();
        break;
      default: break;
    }
    --at_;
    fail("expected a value, found " + shown());
  }

  expression_ptr number(const std::string& text) {
    std::int64_t whole = 0;
    const auto* end = text.data() + text.size();
    if (std::from_chars(text.data(), end, whole).ptr == end)
      return literal(whole);
    double real = 0;
    if (std::from_chars(text.data(), end, real).ptr == end)
      return literal(real);
    fail("\"" + text + "\" is no number");
  }

  expression_ptr list_literal() {
    auto all = make(kind::list_of, "");
    while (!sees("]")) {
      adopt(*all, choice());
      if (!takes(","))
        break;
    }
    expect("]");
    return all;
  }

  expression_ptr mapping_literal() {
    auto all = make(kind::mapping_of, "");
    while (!sees("}")) {
      adopt(*all, choice());
      expect(":");
      adopt(*all, choice());
      if (!takes(","))
        break;
    }
    expect("}");
    return all;
  }

  expression_ptr postfix(expression_ptr a) {
    for (;;) {
      if (takes(".")) {
        a = make(kind::attribute, word(), std::move(a));
      } else if (takes("[")) {
        a = subscript(std::move(a));
      } else if (takes("(")) {
        a = make(kind::call, "", std::move(a));
        call_arguments(*a);
      } else {
        return a;
      }
    }
  }

  expression_ptr subscript(expression_ptr a) {
    expression_ptr parts[3];
    int colons = 0;
    while (!sees("]")) {
      if (takes(":")) {
        if (++colons > 2)
          fail("a slice has three parts at most");
      } else {
        parts[colons] = choice();
      }
    }
    expect("]");
    if (colons == 0) {
      if (!parts[0])
        fail("an index is missing");
      return make(kind::item, "", std::move(a), std::move(parts[0]));
    }
    auto e = make(kind::slice, "", std::move(a));
    for (auto& p : parts)
      adopt(*e, std::move(p));
    return e;
  }

  /// After the opening bracket.
  void call_arguments(expression& e) {
    while (!sees(")")) {
      if (sees("*") || sees("**"))
        fail("* and ** in calls are not supported");
      if (now().is == token::kind::word && next().is == token::kind::symbol
          && next().text == "=") {
        auto name = word();
        ++at_;
        e.named.emplace_back(std::move(name), choice());
        deepen(e, e.named.back().second.get());
      } else {
        adopt(e, choice());
      }
      if (!takes(","))
        break;
    }
    expect(")");
  }

  expression_ptr filtered(expression_ptr a) {
    for (;;) {
      if (takes("|")) {
        a = make(kind::filter, word(), std::move(a));
        if (takes("("))
          call_arguments(*a);
        a = postfix(std::move(a));
      } else if (takes_word("is")) {
        const bool negated = takes_word("not");
        a = make(kind::test, word(), std::move(a));
        if (takes("("))
          call_arguments(*a);
        else if (now().is == token::kind::string || now().is == token::kind::number
                 || (a->name == "in" || a->name == "equalto" || a->name == "eq"
                     || a->name == "divisibleby"))
          adopt(*a, postfix(primary()));
        if (negated)
          a = make(kind::unary, "not", std::move(a));
      } else {
        return a;
      }
    }
  }

  std::vector<token> tokens_;
  std::string where_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
};

} // namespace

block parse(std::string_view text, const std::string& where) {
  return parser(tokens_of(text, where), where).whole();
}

} // namespace millrace::model::jinja
