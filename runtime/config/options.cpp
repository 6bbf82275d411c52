#include "runtime/config/options.hpp"

#include "runtime/nearest.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace millrace {
namespace {

std::string number_text(double x) {
  char buffer[32];
  const bool whole = x == std::trunc(x) && std::abs(x) < 1e13; // no 1e+08 in a table for people
  const auto end = whole ? std::to_chars(buffer, buffer + sizeof buffer, std::int64_t(x)).ptr
                         : std::to_chars(buffer, buffer + sizeof buffer, x).ptr;
  return {buffer, end};
}

/// The double that prints like the float: 0.1F is 0.1 in the file, not 0.10000000149.
double shortest(float x) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, x).ptr;
  double out = x;
  std::from_chars(buffer, end, out);
  return out;
}

bool contains(const number_range& range, double x) {
  return (range.low_excluded ? x > range.low : x >= range.low)
         && (range.high_excluded ? x < range.high : x <= range.high);
}

std::string expectation(const option& o) {
  if (std::holds_alternative<choice_field>(o.target))
    return "one of " + o.range_text();
  const auto type = o.type_name();
  const auto range = o.range_text();
  const auto article = type == "integer" || type == "object" ? "an " : type == "text" ? "" : "a ";
  return article + type + (range.empty() ? "" : ", " + range);
}

template <class Integer>
bool assign_integer(const option& o, Integer& field, const nlohmann::json& value) {
  using limits = std::numeric_limits<Integer>;
  if (value.is_number_integer()) { // also true of unsigned
    if (value.is_number_unsigned()) {
      const auto x = value.get<std::uint64_t>();
      if (x > static_cast<std::uint64_t>(limits::max()) || !contains(o.range, double(x)))
        return false;
      field = static_cast<Integer>(x);
      return true;
    }
    const auto x = value.get<std::int64_t>(); // negative: the parser keeps the rest unsigned
    if ((x < 0 && !limits::is_signed) || (limits::is_signed && x < std::int64_t(limits::min()))
        || (x > 0 && std::uint64_t(x) > std::uint64_t(limits::max()))
        || !contains(o.range, double(x)))
      return false;
    field = static_cast<Integer>(x);
    return true;
  }
  if (!value.is_number_float())
    return false;
  const auto x = value.get<double>(); // 1e6 is a fine way to write an integer
  if (x != std::trunc(x) || std::abs(x) > 9e15 || x > double(limits::max())
      || x < double(limits::min()) || !contains(o.range, x))
    return false;
  field = static_cast<Integer>(x);
  return true;
}

/// Sets a field of each type; false when the value doesn't fit.
struct assigner {
  const option& o;
  const nlohmann::json& value;

  bool operator()(bool* field) const {
    if (!value.is_boolean())
      return false;
    *field = value.get<bool>();
    return true;
  }
  bool operator()(std::int32_t* field) const { return assign_integer(o, *field, value); }
  bool operator()(std::int64_t* field) const { return assign_integer(o, *field, value); }
  bool operator()(std::uint64_t* field) const { return assign_integer(o, *field, value); }
  bool operator()(float* field) const { return real(*field); }
  bool operator()(double* field) const { return real(*field); }
  bool operator()(std::string* field) const {
    if (!value.is_string())
      return false;
    *field = value.get<std::string>();
    return true;
  }
  bool operator()(std::vector<std::string>* field) const {
    if (!value.is_array()
        || !std::all_of(value.begin(), value.end(), [](auto& x) { return x.is_string(); }))
      return false;
    *field = value.get<std::vector<std::string>>();
    return true;
  }
  bool operator()(nlohmann::json* field) const {
    if (!value.is_object())
      return false;
    *field = value;
    return true;
  }
  bool operator()(const list_field& field) const {
    return value.is_array() && field.assign(value).empty();
  }
  bool operator()(const choice_field& field) const {
    if (!value.is_string())
      return false;
    const auto at = std::find(field.names.begin(), field.names.end(), value.get<std::string>());
    if (at == field.names.end())
      return false;
    *field.value = static_cast<std::uint8_t>(at - field.names.begin());
    return true;
  }

private:
  template <class Real>
  bool real(Real& field) const {
    if (!value.is_number())
      return false;
    const auto x = value.get<double>();
    if (!std::isfinite(x) || std::abs(x) > double(std::numeric_limits<Real>::max())
        || !contains(o.range, x))
      return false;
    field = static_cast<Real>(x);
    return true;
  }
};

struct reader {
  nlohmann::json operator()(const nlohmann::json* field) const { return *field; }
  nlohmann::json operator()(const float* field) const { return shortest(*field); }
  nlohmann::json operator()(const choice_field& field) const { return field.names[*field.value]; }
  nlohmann::json operator()(const list_field& field) const { return field.value(); }
  template <class T>
  nlohmann::json operator()(const T* field) const { return *field; }
};

struct type_namer {
  std::string operator()(const bool*) const { return "boolean"; }
  std::string operator()(const float*) const { return "number"; }
  std::string operator()(const double*) const { return "number"; }
  std::string operator()(const std::string*) const { return "text"; }
  std::string operator()(const std::vector<std::string>*) const { return "list of text"; }
  std::string operator()(const nlohmann::json*) const { return "object"; }
  std::string operator()(const choice_field&) const { return "choice"; }
  std::string operator()(const list_field&) const { return "list of objects"; }
  template <class Integer>
  std::string operator()(const Integer*) const { return "integer"; }
};

} // namespace

std::string option::type_name() const { return std::visit(type_namer{}, target); }

std::string option::range_text() const {
  if (const auto* choice = std::get_if<choice_field>(&target))
    return quoted_list(choice->names);
  const bool low = std::isfinite(range.low), high = std::isfinite(range.high);
  if (low && high && !range.low_excluded && !range.high_excluded)
    return number_text(range.low) + " to " + number_text(range.high);
  std::string out;
  if (low)
    out = (range.low_excluded ? "above " : "at least ") + number_text(range.low);
  if (high)
    out += (out.empty() ? "" : " and ") + std::string(range.high_excluded ? "below " : "at most ")
           + number_text(range.high);
  return out;
}

nlohmann::json option::value() const { return std::visit(reader{}, target); }

std::string option::assign(const nlohmann::json& value) const {
  if (std::visit(assigner{*this, value}, target))
    return {};
  auto text = expectation(*this);
  if (const auto* choice = std::get_if<choice_field>(&target); choice && value.is_string())
    text += did_you_mean(value.get<std::string>(), choice->names);
  return text;
}

void option_list::add(std::string_view name, option::target_type target, const number_range& range,
                      std::string_view help) {
  auto path = prefix_ + std::string(name);
  ensure(!find(path) && !is_section(path), [&] { return "option " + path + " declared twice"; });
  options_.push_back({std::move(path), std::move(target), range, std::string(help)});
}

void option_list::enter(std::string_view name, std::string_view help) {
  auto path = prefix_ + std::string(name);
  ensure(!find(path) && !is_section(path), [&] { return "section " + path + " declared twice"; });
  sections_.push_back({path, std::string(help)});
  prefix_ = path + ".";
}

const option* option_list::find(std::string_view path) const {
  const auto at = std::find_if(options_.begin(), options_.end(),
                               [&](const option& o) { return o.path == path; });
  return at == options_.end() ? nullptr : &*at;
}

bool option_list::is_section(std::string_view path) const {
  return std::any_of(sections_.begin(), sections_.end(),
                     [&](const section_info& s) { return s.path == path; });
}

std::vector<std::string> option_list::names_in(std::string_view section) const {
  const auto prefix = section.empty() ? std::string{} : std::string(section) + ".";
  std::vector<std::string> out;
  const auto take = [&](const std::string& path) {
    if (path.starts_with(prefix) && path.find('.', prefix.size()) == std::string::npos)
      out.push_back(path.substr(prefix.size()));
  };
  for (const auto& o : options_)
    take(o.path);
  for (const auto& s : sections_)
    take(s.path);
  return out;
}

std::vector<std::string> option_list::paths() const {
  std::vector<std::string> out;
  for (const auto& o : options_)
    out.push_back(o.path);
  return out;
}

std::string describe_value(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::null: return "null";
    case nlohmann::json::value_t::object: return "an object";
    case nlohmann::json::value_t::array: return "a list";
    default: break;
  }
  auto text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60)
    text = text.substr(0, 57) + "...";
  return text;
}

} // namespace millrace
