#include "policy_loss/params.hpp"

#include "runtime/error.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace millrace::policy_loss {

namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    auto diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      auto substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string listed(const std::vector<std::string>& names, std::string_view separator) {
  std::string text;
  for (const auto& name : names)
    text += (text.empty() ? "" : std::string(separator)) + name;
  return text;
}

std::string number_text(double x) {
  if (std::isinf(x))
    return x > 0 ? "inf" : "-inf";
  auto text = nlohmann::json(x).dump();
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

std::string range_text(range allowed) {
  if (allowed.low == -infinity && allowed.high == infinity)
    return "";
  if (allowed.high == infinity)
    return ">= " + number_text(allowed.low);
  return number_text(allowed.low) + " to " + number_text(allowed.high);
}

std::optional<double> as_number(const nlohmann::json& value) {
  if (value.is_number())
    return value.get<double>();
  if (value == "inf")
    return infinity;
  if (value == "-inf")
    return -infinity;
  return std::nullopt;
}

} // namespace

std::vector<std::string> near_names(std::string_view name, const std::vector<std::string>& known) {
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const auto& candidate : known) {
    auto distance = edit_distance(name, candidate);
    if (distance <= std::max<std::size_t>(2, name.size() / 3))
      near.emplace_back(distance, candidate);
    else if (name.size() >= 3 && candidate.find(name) != std::string::npos)
      near.emplace_back(distance + name.size(), candidate);
  }
  std::sort(near.begin(), near.end());
  std::vector<std::string> result;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, near.size()); ++i)
    result.push_back(near[i].second);
  return result;
}

std::string unknown_name(std::string_view where, std::string_view kind, std::string_view name,
                         const std::vector<std::string>& known) {
  auto text = std::string(where) + ": unknown " + std::string(kind) + " \"" + std::string(name) + "\"";
  auto near = near_names(name, known);
  text += near.empty() ? "." : "; did you mean \"" + listed(near, "\" or \"") + "\"?";
  return text + " Known: " + (known.empty() ? "none" : listed(known, ", ")) + ".";
}

param_reader::param_reader(const nlohmann::json& params, std::string_view where)
  : params_(params.is_null() ? nlohmann::json::object() : params), where_(where) {
  if (!params_.is_object())
    throw user_error(where_ + ": found " + params_.dump() + ", expected an object of parameters");
}

bool param_reader::has(std::string_view name) const {
  return params_.contains(std::string(name));
}

nlohmann::json param_reader::rest() {
  auto left = nlohmann::json::object();
  for (const auto& [name, value] : params_.items())
    if (read_.insert(name).second)
      left[name] = value;
  return left;
}

const nlohmann::json* param_reader::take(std::string_view name) {
  read_.emplace(name);
  auto found = params_.find(std::string(name));
  return found == params_.end() ? nullptr : &*found;
}

void param_reader::describe(std::string_view name, std::string type, std::string otherwise,
                            range allowed, std::string_view meaning) {
  described_.push_back({std::string(name), std::move(type), std::move(otherwise),
                        range_text(allowed), std::string(meaning)});
}

void param_reader::refuse(std::string_view name, const std::string& expected) const {
  auto found = params_.find(std::string(name));
  throw user_error(where_ + "." + std::string(name) + ": found "
                   + (found == params_.end() ? "nothing" : found->dump()) + ", expected "
                   + expected);
}

std::optional<double> param_reader::maybe_number(std::string_view name, range allowed,
                                                 std::string_view meaning) {
  describe(name, "number", "", allowed, meaning);
  const auto* found = take(name);
  if (found == nullptr || found->is_null())
    return std::nullopt;
  auto value = as_number(*found);
  if (!value)
    refuse(name, "a number");
  if (!(*value >= allowed.low && *value <= allowed.high))
    refuse(name, "a number " + range_text(allowed));
  return value;
}

double param_reader::number(std::string_view name, double otherwise, range allowed,
                            std::string_view meaning) {
  auto value = maybe_number(name, allowed, meaning);
  described_.back().default_ = number_text(otherwise);
  return value.value_or(otherwise);
}

std::int64_t param_reader::integer(std::string_view name, std::int64_t otherwise, range allowed,
                                   std::string_view meaning) {
  describe(name, "integer", std::to_string(otherwise), allowed, meaning);
  const auto* found = take(name);
  if (found == nullptr)
    return otherwise;
  auto value = as_number(*found);
  if (!value || !std::isfinite(*value) || *value != std::floor(*value) || *value < allowed.low
      || *value > allowed.high)
    refuse(name, "an integer " + range_text(allowed));
  return static_cast<std::int64_t>(*value);
}

bool param_reader::boolean(std::string_view name, bool otherwise, std::string_view meaning) {
  describe(name, "bool", otherwise ? "true" : "false", {}, meaning);
  const auto* found = take(name);
  if (found == nullptr)
    return otherwise;
  if (!found->is_boolean())
    refuse(name, "true or false");
  return found->get<bool>();
}

std::size_t param_reader::choice(std::string_view name, const std::vector<std::string>& choices,
                                 std::size_t otherwise, std::string_view meaning) {
  describe(name, listed(choices, " | "), choices[otherwise], {}, meaning);
  const auto* found = take(name);
  if (found == nullptr)
    return otherwise;
  if (found->is_string())
    for (std::size_t i = 0; i < choices.size(); ++i)
      if (*found == choices[i])
        return i;
  refuse(name, "one of \"" + listed(choices, "\", \"") + "\"");
}

void param_reader::finish() const {
  std::vector<std::string> known(read_.begin(), read_.end());
  for (const auto& [name, value] : params_.items())
    if (!read_.contains(name))
      throw user_error(unknown_name(where_, "parameter", name, known));
}

} // namespace millrace::policy_loss
