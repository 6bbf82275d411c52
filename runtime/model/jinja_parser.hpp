#pragma once

#include "runtime/model/jinja_value.hpp"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::model::jinja {

struct expression;
using expression_ptr = std::unique_ptr<expression>;

/// `name` is a variable's, attribute's, operator's, filter's or test's; `parts` are the operands,
/// with null where a slice leaves one out.
struct expression {
  enum class kind {
    literal,   ///< constant
    name,
    list_of,   ///< parts
    mapping_of, ///< key, value, key, value …
    attribute, ///< parts[0].name
    item,      ///< parts[0][parts[1]]
    slice,     ///< parts[0][parts[1]:parts[2]:parts[3]]
    call,      ///< parts[0](parts[1]…, named)
    filter,    ///< parts[0] | name(parts[1]…, named)
    test,      ///< parts[0] is name(parts[1]…)
    unary,     ///< not - +
    binary,    ///< and or + - * / // % ** ~ == != < > <= >= in
    choice     ///< parts[0] if parts[1] else parts[2]
  };
  kind is = kind::literal;
  std::string name;
  value constant;
  std::vector<expression_ptr> parts;
  std::vector<std::pair<std::string, expression_ptr>> named;
  int line = 0;
  int depth = 1; ///< of the tree below: bounded, so that walking it can't exhaust the stack
};

struct statement;
using block = std::vector<statement>;

struct statement {
  enum class kind {
    text,   ///< `name` as it is
    print,  ///< value
    branch, ///< if value then body, else otherwise
    loop,   ///< for targets in value [if condition]: body; otherwise where there was nothing
    assign, ///< set targets[0] = value, or the member `name` of namespace targets[0]
    capture, ///< set targets[0] to what body prints
    leave, proceed ///< break, continue
  };
  kind is = kind::text;
  std::string name;
  std::vector<std::string> targets;
  expression_ptr value, condition;
  block body, otherwise;
  int line = 0;
};

/// A template as transformers sets Jinja up: trim_blocks, lstrip_blocks, loop controls. Throws
/// user_error naming `where`, the line and what is not supported.
block parse(std::string_view text, const std::string& where);

} // namespace millrace::model::jinja
