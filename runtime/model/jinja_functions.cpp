#include "runtime/model/jinja_functions.hpp"

#include "runtime/error.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

namespace millrace::model::jinja {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw user_error(what); }

const std::string& text_of(const value& v, const std::string& who) {
  if (v.is_undefined())
    refuse("'" + std::get<undefined>(v.is).name + "' is undefined, and " + who + " needs a string");
  if (!v.text())
    refuse(who + " needs a string, not a " + v.type_name());
  return *v.text();
}

std::int64_t integer_of(const value& v, const std::string& who) {
  if (const auto* b = std::get_if<bool>(&v.is))
    return *b ? 1 : 0;
  if (!v.integer())
    refuse(who + " needs an integer, not a " + v.type_name());
  return *v.integer();
}

/// Arguments of one call, by position or name.
class given_arguments {
public:
  given_arguments(const arguments& all, std::string who) : all_(all), who_(std::move(who)) {}

  const value* get(std::size_t position, const char* name) const {
    if (position < all_.positional.size())
      return &all_.positional[position];
    for (const auto& [key, v] : all_.named)
      if (key == name)
        return &v;
    return nullptr;
  }
  std::optional<std::string> text(std::size_t position, const char* name) const {
    const auto* v = get(position, name);
    return v && !v->is_none() ? std::optional(text_of(*v, who_)) : std::nullopt;
  }
  std::string needed_text(std::size_t position, const char* name) const {
    if (!get(position, name))
      refuse(who_ + " needs an argument");
    return text_of(*get(position, name), who_);
  }

private:
  const arguments& all_;
  std::string who_;
};

constexpr const char* blanks = " \t\n\r\f\v";

std::string stripped(const std::string& s, const std::string& what, bool left, bool right) {
  std::size_t begin = 0, end = s.size();
  while (left && begin < end && what.find(s[begin]) != what.npos)
    ++begin;
  while (right && end > begin && what.find(s[end - 1]) != what.npos)
    --end;
  return s.substr(begin, end - begin);
}

/// ASCII letters only: a template changes the case of roles and names, not of what people write.
std::string cased(std::string s, bool upper) {
  for (auto& c : s)
    if (upper ? c >= 'a' && c <= 'z' : c >= 'A' && c <= 'Z')
      c = static_cast<char>(c ^ 0x20);
  return s;
}

std::string titled(std::string s, bool words) {
  bool first = true;
  for (auto& c : s) {
    const bool letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
    if (letter)
      c = cased(std::string(1, c), first)[0];
    first = words ? !letter : false;
  }
  return s;
}

std::string replaced(std::string s, const std::string& what, const std::string& by) {
  if (what.empty())
    refuse("replace needs something to look for");
  for (auto at = s.find(what); at != s.npos; at = s.find(what, at + by.size()))
    s.replace(at, what.size(), by);
  return s;
}

list split(const std::string& s, const std::optional<std::string>& by, std::int64_t most) {
  list all;
  if (!by) { // at white space, none of it kept
    for (std::size_t at = s.find_first_not_of(blanks); at != s.npos;) {
      const auto end = s.find_first_of(blanks, at);
      all.emplace_back(s.substr(at, end - at));
      at = s.find_first_not_of(blanks, end);
    }
    return all;
  }
  if (by->empty())
    refuse("split needs a separator");
  std::size_t at = 0;
  for (auto end = s.find(*by); end != s.npos && most != 0; end = s.find(*by, at), --most) {
    all.emplace_back(s.substr(at, end - at));
    at = end + by->size();
  }
  all.emplace_back(s.substr(at));
  return all;
}

value string_method(const std::string& s, const std::string& name, const arguments& all) {
  const given_arguments given(all, name);
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return stripped(s, given.text(0, "chars").value_or(blanks), name != "rstrip", name != "lstrip");
  if (name == "split") {
    const auto* most = given.get(1, "maxsplit");
    return split(s, given.text(0, "sep"), most ? integer_of(*most, name) : -1);
  }
  if (name == "startswith")
    return s.starts_with(given.needed_text(0, "prefix"));
  if (name == "endswith")
    return s.ends_with(given.needed_text(0, "suffix"));
  if (name == "replace")
    return replaced(s, given.needed_text(0, "old"), given.needed_text(1, "new"));
  if (name == "upper" || name == "lower")
    return cased(s, name == "upper");
  if (name == "title" || name == "capitalize")
    return titled(s, name == "title");
  if (name == "find") {
    const auto at = s.find(given.needed_text(0, "sub"));
    return at == s.npos ? std::int64_t{-1}
                        : static_cast<std::int64_t>(characters(s.substr(0, at)).size());
  }
  if (name == "count") {
    const auto what = given.needed_text(0, "sub");
    std::int64_t n = 0;
    for (auto at = s.find(what); !what.empty() && at != s.npos; at = s.find(what, at + what.size()))
      ++n;
    return n;
  }
  // join
  std::string out;
  bool first = true;
  for (const auto& x : elements_of(all.positional.empty() ? value() : all.positional[0])) {
    out += (std::exchange(first, false) ? "" : s) + text_of(x, "join");
  }
  return out;
}

value mapping_method(const value& subject, const std::string& name, const arguments& all) {
  const given_arguments given(all, name);
  if (name == "get") {
    const auto* found = subject.member(given.needed_text(0, "key"));
    const auto* otherwise = given.get(1, "default");
    return found ? *found : otherwise ? *otherwise : value(none{});
  }
  list out;
  for (const auto& [key, v] : *subject.members())
    out.push_back(name == "keys" ? value(key) : name == "values" ? v : value(list{key, v}));
  return out;
}

value compared(const std::string& symbol, const value& a, const value& b) {
  double x = 0, y = 0;
  int order = 0;
  if (a.number(x) && b.number(y))
    order = x < y ? -1 : x > y ? 1 : 0;
  else if (a.text() && b.text())
    order = a.text()->compare(*b.text());
  else
    refuse(std::string("a ") + a.type_name() + " and a " + b.type_name() + " can't be compared by "
           + symbol);
  return symbol == "<" ? order < 0 : symbol == ">" ? order > 0 : symbol == "<=" ? order <= 0
                                                                                : order >= 0;
}

value calculated(const std::string& symbol, const value& a, const value& b) {
  double x = 0, y = 0;
  if (!a.number(x) || !b.number(y))
    refuse(std::string("a ") + a.type_name() + " and a " + b.type_name() + " don't go together in "
           + symbol + (symbol == "+" ? "; ~ joins anything" : ""));
  const bool divides = symbol == "/" || symbol == "//" || symbol == "%";
  if (divides && y == 0)
    refuse("division by zero");
  const bool whole = !std::holds_alternative<double>(a.is) && !std::holds_alternative<double>(b.is);
  const double r = symbol == "+" ? x + y : symbol == "-" ? x - y : symbol == "*" ? x * y
                   : symbol == "/" ? x / y : symbol == "//" ? std::floor(x / y)
                   : symbol == "%" ? x - y * std::floor(x / y) : std::pow(x, y);
  if (whole && symbol != "/" && std::abs(r) < 9e15 && r == std::floor(r))
    return static_cast<std::int64_t>(r);
  return r;
}

bool contained(const value& what, const value& in) {
  if (const auto* s = in.text())
    return s->find(text_of(what, "in")) != s->npos;
  if (in.members() || std::holds_alternative<std::shared_ptr<space>>(in.is))
    return what.text() && in.member(*what.text());
  const auto all = elements_of(in);
  return std::ranges::find(all, what) != all.end();
}

/// selectattr("role", "equalto", "system") and its three siblings.
value selected(const std::string& name, const value& subject, const arguments& given) {
  const bool by_attribute = name.ends_with("attr");
  const bool keep = name.starts_with("select");
  auto rest = given.positional;
  std::string attribute, test;
  if (by_attribute) {
    if (rest.empty())
      refuse(name + " needs the attribute's name");
    attribute = text_of(rest[0], name);
    rest.erase(rest.begin());
  }
  if (!rest.empty()) {
    test = text_of(rest[0], name);
    rest.erase(rest.begin());
  }
  list out;
  for (const auto& x : elements_of(subject)) {
    const auto v = by_attribute ? item_of(x, attribute) : x;
    if ((test.empty() ? v.truth() : apply_test(test, v, rest)) == keep)
      out.push_back(x);
  }
  return out;
}

value mapped(const value& subject, const arguments& given) {
  const given_arguments named(given, "map");
  list out;
  for (const auto& x : elements_of(subject))
    if (const auto attribute = named.text(99, "attribute"))
      out.push_back(item_of(x, *attribute));
    else
      out.push_back(apply_filter(named.needed_text(0, "filter"), x, {}));
  return out;
}

std::int64_t length_of(const value& v) {
  if (const auto* s = v.text())
    return static_cast<std::int64_t>(characters(*s).size());
  if (v.is_undefined() || v.items() || v.members())
    return static_cast<std::int64_t>(elements_of(v).size());
  refuse(std::string("a ") + v.type_name() + " has no length");
}

value joined(const value& subject, const given_arguments& given) {
  std::string out;
  bool first = true;
  const auto by = given.text(0, "d").value_or("");
  const auto attribute = given.text(1, "attribute");
  for (const auto& x : elements_of(subject))
    out += (std::exchange(first, false) ? "" : by)
           + (attribute ? item_of(x, *attribute) : x).printed();
  return out;
}

} // namespace

value apply_filter(const std::string& name, const value& subject, const arguments& all) {
  const given_arguments given(all, name);
  if (name == "trim")
    return stripped(subject.printed(), given.text(0, "chars").value_or(blanks), true, true);
  if (name == "tojson") {
    const auto* indent = given.get(99, "indent");
    if (subject.is_undefined())
      refuse("'" + std::get<undefined>(subject.is).name + "' is undefined, and has no JSON");
    return subject.dumped(indent && !indent->is_none()
                            ? static_cast<int>(std::clamp<std::int64_t>(
                                integer_of(*indent, name), 0, 16)) : -1);
  }
  if (name == "join")
    return joined(subject, given);
  if (name == "length" || name == "count")
    return length_of(subject);
  if (name == "upper" || name == "lower")
    return cased(subject.printed(), name == "upper");
  if (name == "title" || name == "capitalize")
    return titled(subject.printed(), name == "title");
  if (name == "replace")
    return replaced(subject.printed(), given.needed_text(0, "old"), given.needed_text(1, "new"));
  if (name == "string" || name == "safe")
    return subject.printed();
  if (name == "list")
    return elements_of(subject);
  if (name == "first" || name == "last" || name == "reverse") {
    auto elements = elements_of(subject);
    if (name == "reverse") {
      std::ranges::reverse(elements);
      return elements;
    }
    return elements.empty() ? value(undefined{name}) : name == "first" ? elements.front()
                                                                       : elements.back();
  }
  if (name == "default" || name == "d") {
    const auto* otherwise = given.get(0, "default_value");
    const auto* falsy = given.get(1, "boolean");
    const bool use = subject.is_undefined() || (falsy && falsy->truth() && !subject.truth());
    return !use ? subject : otherwise ? *otherwise : value("");
  }
  if (name == "items")
    return subject.members() ? mapping_method(subject, "items", {}) : value(list{});
  if (name == "int") {
    double d = 0;
    if (subject.number(d))
      return static_cast<std::int64_t>(std::clamp(d, -9e15, 9e15));
    const auto& text = text_of(subject, name);
    return static_cast<std::int64_t>(std::strtoll(text.c_str(), nullptr, 10));
  }
  if (name == "map")
    return mapped(subject, all);
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr")
    return selected(name, subject, all);
  refuse("the filter \"" + name + "\" is not supported");
}

bool apply_test(const std::string& name, const value& v, const list& given) {
  const auto argument = [&]() -> const value& {
    if (given.empty())
      refuse("the test \"" + name + "\" needs an argument");
    return given[0];
  };
  double d = 0;
  if (name == "defined" || name == "undefined")
    return v.is_undefined() == (name == "undefined");
  if (name == "none")
    return v.is_none();
  if (name == "string")
    return v.text() != nullptr;
  if (name == "mapping")
    return v.members() != nullptr;
  if (name == "sequence")
    return v.text() || v.items() || v.members();
  if (name == "iterable")
    return v.text() || v.items() || v.members() || v.is_undefined();
  if (name == "number")
    return v.number(d);
  if (name == "boolean")
    return std::holds_alternative<bool>(v.is);
  if (name == "integer")
    return v.integer() != nullptr;
  if (name == "float")
    return std::holds_alternative<double>(v.is);
  if (name == "true" || name == "false") {
    const auto* b = std::get_if<bool>(&v.is);
    return b && *b == (name == "true");
  }
  if (name == "odd" || name == "even")
    return (integer_of(v, name) % 2 == 0) == (name == "even");
  if (name == "divisibleby") {
    const auto by = integer_of(argument(), name);
    return by != 0 && integer_of(v, name) % by == 0;
  }
  if (name == "equalto" || name == "eq" || name == "==")
    return v == argument();
  if (name == "ne" || name == "!=")
    return !(v == argument());
  if (name == "in")
    return contained(v, argument());
  refuse("the test \"" + name + "\" is not supported");
}

value method_of(const value& subject, const std::string& name) {
  const auto is_one_of = [&](std::initializer_list<const char*> names) {
    return std::ranges::any_of(names, [&](const char* n) { return name == n; });
  };
  if (subject.text() && is_one_of({"strip", "lstrip", "rstrip", "split", "startswith", "endswith",
                                   "replace", "upper", "lower", "title", "capitalize", "find",
                                   "count", "join"}))
    return function{name, [s = *subject.text(), name](const arguments& given) {
                      return string_method(s, name, given);
                    }};
  if (subject.members() && is_one_of({"get", "items", "keys", "values"}))
    return function{name, [subject, name](const arguments& given) {
                      return mapping_method(subject, name, given);
                    }};
  return undefined{name};
}

value apply_operator(const std::string& symbol, const value& a, const value& b) {
  if (symbol == "~")
    return a.printed() + b.printed();
  if (symbol == "==" || symbol == "!=")
    return (a == b) == (symbol == "==");
  if (symbol == "in")
    return contained(a, b);
  for (const auto* v : {&a, &b})
    if (v->is_undefined())
      refuse("'" + std::get<undefined>(v->is).name + "' is undefined");
  if (symbol == "<" || symbol == ">" || symbol == "<=" || symbol == ">=")
    return compared(symbol, a, b);
  if (symbol == "+" && a.text() && b.text())
    return *a.text() + *b.text();
  if (symbol == "+" && a.items() && b.items()) {
    auto all = *a.items();
    all.insert(all.end(), b.items()->begin(), b.items()->end());
    return all;
  }
  if (symbol == "*" && a.text() && b.integer()) {
    if (*b.integer() > 10000)
      refuse("a string times " + std::to_string(*b.integer()) + " is too long");
    std::string out;
    for (std::int64_t i = 0; i < *b.integer(); ++i)
      out += *a.text();
    return out;
  }
  return calculated(symbol, a, b);
}

value item_of(const value& subject, const value& index) {
  if (subject.is_undefined())
    refuse("'" + std::get<undefined>(subject.is).name + "' is undefined");
  const auto missing = undefined{index.printed()};
  if (index.text()) {
    const auto* found = subject.member(*index.text());
    return found ? *found : missing;
  }
  if (!index.integer() || !(subject.items() || subject.text()))
    return missing;
  const auto all = elements_of(subject);
  const auto n = static_cast<std::int64_t>(all.size());
  const auto i = *index.integer() < 0 ? *index.integer() + n : *index.integer();
  return i < 0 || i >= n ? value(missing) : all[static_cast<std::size_t>(i)];
}

value slice_of(const value& subject, const value& from, const value& to, const value& step) {
  if (!subject.items() && !subject.text())
    refuse(std::string("a ") + subject.type_name() + " can't be sliced");
  const auto all = elements_of(subject);
  const auto n = static_cast<std::int64_t>(all.size());
  const auto absent = [](const value& v) { return v.is_undefined() || v.is_none(); };
  const auto by = absent(step) ? 1 : integer_of(step, "a slice");
  if (by == 0)
    refuse("a slice's step is 0");
  const auto bound = [&](const value& v, std::int64_t otherwise) {
    if (absent(v))
      return otherwise;
    const auto i = integer_of(v, "a slice");
    return std::clamp(i < 0 ? i + n : i, by > 0 ? std::int64_t{0} : std::int64_t{-1},
                      by > 0 ? n : n - 1);
  };
  const auto begin = bound(from, by > 0 ? 0 : n - 1);
  const auto end = bound(to, by > 0 ? n : -1);
  list out;
  for (auto i = begin; by > 0 ? i < end : i > end; i += by)
    out.push_back(all[static_cast<std::size_t>(i)]);
  if (subject.items())
    return out;
  std::string text;
  for (const auto& c : out)
    text += *c.text();
  return text;
}

list elements_of(const value& v) {
  if (const auto* l = v.items())
    return *l;
  list out;
  if (const auto* s = v.text()) {
    for (auto& c : characters(*s))
      out.emplace_back(std::move(c));
  } else if (const auto* m = v.members()) {
    for (const auto& [key, x] : *m)
      out.emplace_back(key);
  } else if (!v.is_undefined()) {
    refuse(std::string("a ") + v.type_name() + " can't be gone through");
  }
  return out;
}

value global(const std::string& name) {
  if (name == "range")
    return function{name, [](const arguments& given) -> value {
                      std::int64_t bounds[3] = {0, 0, 1};
                      const auto n = given.positional.size();
                      if (n < 1 || n > 3)
                        refuse("range needs one to three integers");
                      for (std::size_t i = 0; i < n; ++i)
                        bounds[n == 1 ? 1 : i] = integer_of(given.positional[i], "range");
                      const auto [from, to, by] = bounds;
                      if (by == 0 || std::abs(static_cast<double>(to) - static_cast<double>(from))
                                       > 100000)
                        refuse("range is too long");
                      list out;
                      for (auto i = from; by > 0 ? i < to : i > to; i += by)
                        out.emplace_back(i);
                      return out;
                    }};
  if (name == "namespace")
    return function{name, [](const arguments& given) -> value {
                      auto s = std::make_shared<space>();
                      for (const auto& [key, v] : given.named)
                        s->members[key] = v;
                      return s;
                    }};
  if (name == "dict")
    return function{name, [](const arguments& given) -> value { return given.named; }};
  if (name == "raise_exception")
    return function{name, [](const arguments& given) -> value {
                      refuse("the template refuses this: "
                             + (given.positional.empty() ? std::string()
                                                         : given.positional[0].printed()));
                    }};
  return undefined{name};
}

} // namespace millrace::model::jinja
