#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace millrace::model::jinja {

struct value;
using list = std::vector<value>;
/// In the order of insertion, as Python's.
using mapping = std::vector<std::pair<std::string, value>>;

/// A name that has no value. Prints as nothing, is false, and can't be used otherwise.
struct undefined {
  std::string name;
};
struct none {};
/// namespace(): what a loop's body can assign to.
struct space {
  std::map<std::string, value> members;
};
/// Arguments of a call: by position, and by name.
struct arguments {
  list positional;
  mapping named;
};
struct function {
  std::string name;
  std::function<value(const arguments&)> call;
};

/// A value of a template, with Python's rules of truth, equality and printing.
struct value {
  std::variant<undefined, none, bool, std::int64_t, double, std::string,
               std::shared_ptr<const list>, std::shared_ptr<const mapping>, std::shared_ptr<space>,
               std::shared_ptr<const function>>
    is;

  value() = default;
  value(undefined u) : is(std::move(u)) {}
  value(none n) : is(n) {}
  value(bool b) : is(b) {}
  value(std::int64_t i) : is(i) {}
  value(double d) : is(d) {}
  value(std::string s) : is(std::move(s)) {}
  value(const char* s) : is(std::string(s)) {}
  value(list l) : is(std::make_shared<const list>(std::move(l))) {}
  value(mapping m) : is(std::make_shared<const mapping>(std::move(m))) {}
  value(std::shared_ptr<space> s) : is(std::move(s)) {}
  value(function f) : is(std::make_shared<const function>(std::move(f))) {}

  static value from(const nlohmann::ordered_json& json);

  [[nodiscard]] bool is_undefined() const { return std::holds_alternative<undefined>(is); }
  [[nodiscard]] bool is_none() const { return std::holds_alternative<none>(is); }
  [[nodiscard]] const std::string* text() const { return std::get_if<std::string>(&is); }
  [[nodiscard]] const list* items() const;
  [[nodiscard]] const mapping* members() const;
  [[nodiscard]] const std::int64_t* integer() const { return std::get_if<std::int64_t>(&is); }
  /// An integer, truth value or real; false when it is no number.
  [[nodiscard]] bool number(double& out) const;
  /// The member's value, or nullptr where this is no mapping or has none.
  [[nodiscard]] const value* member(const std::string& name) const;

  [[nodiscard]] bool truth() const;
  [[nodiscard]] const char* type_name() const; ///< "string", "list", …
  [[nodiscard]] std::string printed() const;   ///< Python's str()
  [[nodiscard]] std::string quoted() const;    ///< Python's repr()
  /// Python's json.dumps(ensure_ascii=False). `indent` < 0: on one line. Throws user_error for what
  /// JSON doesn't have.
  [[nodiscard]] std::string dumped(int indent, int depth = 0) const;
};

bool operator==(const value& a, const value& b);

/// The characters of a text, one string each.
std::vector<std::string> characters(const std::string& text);

} // namespace millrace::model::jinja
