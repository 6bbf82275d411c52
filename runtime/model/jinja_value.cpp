#include "runtime/model/jinja_value.hpp"

#include "runtime/error.hpp"
#include "runtime/model/utf8.hpp"

#include <array>
#include <charconv>
#include <cmath>

namespace millrace::model::jinja {
namespace {

/// Python's repr of a float: the shortest that reads back the same, with a point in it.
std::string real_text(double d) {
  if (std::isnan(d))
    return "nan";
  if (std::isinf(d))
    return d > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), d).ptr;
  std::string text(buffer.data(), end);
  return text.find_first_of(".e") == text.npos ? text + ".0" : text;
}

std::string json_text(const std::string& s) {
  return nlohmann::json(s).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string python_quoted(const std::string& s) {
  const char quote = s.find('\'') != s.npos && s.find('"') == s.npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : s) {
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\\' || c == quote)
      out += {'\\', c};
    else
      out += c;
  }
  return out + quote;
}

} // namespace

value value::from(const nlohmann::ordered_json& json) {
  using type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case type::boolean: return json.get<bool>();
    case type::number_integer:
    case type::number_unsigned: return json.get<std::int64_t>();
    case type::number_float: return json.get<double>();
    case type::string: return json.get<std::string>();
    case type::array: {
      list all;
      for (const auto& x : json)
        all.push_back(from(x));
      return all;
    }
    case type::object: {
      mapping all;
      for (const auto& [name, x] : json.items())
        all.emplace_back(name, from(x));
      return all;
    }
    default: return none{};
  }
}

const list* value::items() const {
  const auto* held = std::get_if<std::shared_ptr<const list>>(&is);
  return held ? held->get() : nullptr;
}

const mapping* value::members() const {
  const auto* held = std::get_if<std::shared_ptr<const mapping>>(&is);
  return held ? held->get() : nullptr;
}

bool value::number(double& out) const {
  if (const auto* b = std::get_if<bool>(&is))
    out = *b ? 1 : 0;
  else if (const auto* i = integer())
    out = static_cast<double>(*i);
  else if (const auto* d = std::get_if<double>(&is))
    out = *d;
  else
    return false;
  return true;
}

const value* value::member(const std::string& name) const {
  if (const auto* m = members()) {
    for (const auto& [key, v] : *m)
      if (key == name)
        return &v;
  } else if (const auto* s = std::get_if<std::shared_ptr<space>>(&is)) {
    if (const auto found = (*s)->members.find(name); found != (*s)->members.end())
      return &found->second;
  }
  return nullptr;
}

bool value::truth() const {
  double d = 0;
  if (number(d))
    return d != 0;
  if (const auto* t = text())
    return !t->empty();
  if (const auto* l = items())
    return !l->empty();
  if (const auto* m = members())
    return !m->empty();
  return !is_undefined() && !is_none();
}

const char* value::type_name() const {
  constexpr std::array names{"undefined", "none", "boolean", "integer", "float", "string", "list",
                             "mapping", "namespace", "function"};
  return names[is.index()];
}

std::string value::printed() const {
  if (const auto* t = text())
    return *t;
  return is_undefined() ? std::string() : quoted();
}

std::string value::quoted() const {
  if (const auto* t = text())
    return python_quoted(*t);
  if (is_none())
    return "None";
  if (const auto* b = std::get_if<bool>(&is))
    return *b ? "True" : "False";
  if (const auto* i = integer())
    return std::to_string(*i);
  if (const auto* d = std::get_if<double>(&is))
    return real_text(*d);
  std::string out;
  if (const auto* l = items()) {
    for (const auto& x : *l)
      out += (out.empty() ? "" : ", ") + x.quoted();
    return "[" + out + "]";
  }
  if (const auto* m = members()) {
    for (const auto& [key, x] : *m)
      out += (out.empty() ? "" : ", ") + python_quoted(key) + ": " + x.quoted();
    return "{" + out + "}";
  }
  if (is_undefined())
    return "Undefined";
  throw user_error(std::string("a ") + type_name() + " can't be printed");
}

std::string value::dumped(int indent, int depth) const {
  if (const auto* t = text())
    return json_text(*t);
  if (is_none())
    return "null";
  if (const auto* b = std::get_if<bool>(&is))
    return *b ? "true" : "false";
  if (integer() || std::holds_alternative<double>(is))
    return quoted();
  const auto line = [&](int d) {
    return indent < 0 ? std::string()
                      : "\n" + std::string(static_cast<std::size_t>(indent * d), ' ');
  };
  const std::string between = indent < 0 ? ", " : ",";
  std::string out;
  const auto add = [&](const std::string& part) {
    out += (out.empty() ? "" : between) + line(depth + 1) + part;
  };
  if (const auto* l = items()) {
    for (const auto& x : *l)
      add(x.dumped(indent, depth + 1));
    return l->empty() ? "[]" : "[" + out + line(depth) + "]";
  }
  if (const auto* m = members()) {
    for (const auto& [key, x] : *m)
      add(json_text(key) + ": " + x.dumped(indent, depth + 1));
    return m->empty() ? "{}" : "{" + out + line(depth) + "}";
  }
  throw user_error(std::string("a value that is ") + type_name() + " has no JSON");
}

bool operator==(const value& a, const value& b) {
  double x = 0, y = 0;
  if (a.number(x) && b.number(y))
    return x == y;
  if (a.is.index() != b.is.index())
    return false;
  if (a.text())
    return *a.text() == *b.text();
  if (a.items())
    return *a.items() == *b.items();
  if (const auto* m = a.members()) {
    if (m->size() != b.members()->size())
      return false;
    for (const auto& [key, v] : *m) {
      const auto* other = b.member(key);
      if (!other || !(v == *other))
        return false;
    }
    return true;
  }
  return a.is_none() || a.is_undefined();
}

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> all;
  for (std::size_t at = 0; at < text.size();) {
    const auto begin = at;
    next_code_point(text, at);
    all.push_back(text.substr(begin, at - begin));
  }
  return all;
}

} // namespace millrace::model::jinja
