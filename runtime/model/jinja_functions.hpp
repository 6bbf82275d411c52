#pragma once

#include "runtime/model/jinja_value.hpp"

#include <string>

namespace millrace::model::jinja {

// What templates can call. All throw user_error saying what was wrong; the caller adds the line.

/// `subject | name(given)`.
value apply_filter(const std::string& name, const value& subject, const arguments& given);

/// `subject is name(given)`.
bool apply_test(const std::string& name, const value& subject, const list& given);

/// The method of a string, list or mapping; undefined where it has none.
value method_of(const value& subject, const std::string& name);

/// a OP b, for all operators but `and` and `or`.
value apply_operator(const std::string& symbol, const value& a, const value& b);

/// subject[index]; undefined where there is nothing.
value item_of(const value& subject, const value& index);

/// subject[from:to:step]; undefined parts are left out.
value slice_of(const value& subject, const value& from, const value& to, const value& step);

/// What a loop goes through: elements, keys, or characters.
list elements_of(const value& v);

/// range, namespace, dict, raise_exception by name; undefined for others.
value global(const std::string& name);

} // namespace millrace::model::jinja
