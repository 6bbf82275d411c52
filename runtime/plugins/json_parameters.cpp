#include "runtime/plugins/json_parameters.hpp"

#include "runtime/error.hpp"
#include "runtime/nearest.hpp"

namespace millrace::plugins {

namespace {

std::string shown(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

} // namespace

json_parameters::json_parameters(const nlohmann::json& object, std::string where,
                                 std::string plugin_config)
  : object_(object.is_null() ? nlohmann::json::object() : object), text_(shown(object_)),
    where_(std::move(where)), plugin_config_(std::move(plugin_config)) {
  if (!object_.is_object())
    throw user_error(where_ + ": found " + text_ + ", expected an object");
}

const std::string& json_parameters::json() const {
  whole_ = true;
  return text_;
}

const nlohmann::json* json_parameters::take(std::string_view key) const {
  read_.emplace(key);
  const auto at = object_.find(std::string(key));
  return at == object_.end() ? nullptr : &*at;
}

double json_parameters::number(std::string_view key, double otherwise) const {
  const auto* value = take(key);
  if (value && !value->is_number())
    refuse(key, "a number");
  return value ? value->get<double>() : otherwise;
}

std::int64_t json_parameters::integer(std::string_view key, std::int64_t otherwise) const {
  const auto* value = take(key);
  if (value && !value->is_number_integer())
    refuse(key, "a whole number");
  return value ? value->get<std::int64_t>() : otherwise;
}

bool json_parameters::boolean(std::string_view key, bool otherwise) const {
  const auto* value = take(key);
  if (value && !value->is_boolean())
    refuse(key, "true or false");
  return value ? value->get<bool>() : otherwise;
}

std::string json_parameters::text(std::string_view key, std::string otherwise) const {
  const auto* value = take(key);
  if (value && !value->is_string())
    refuse(key, "text");
  return value ? value->get<std::string>() : otherwise;
}

void json_parameters::refuse(std::string_view key, std::string_view expected) const {
  const auto at = object_.find(std::string(key));
  throw user_error(where_ + "." + std::string(key) + ": found "
                   + (at == object_.end() ? "nothing" : shown(*at)) + ", expected "
                   + std::string(expected));
}

void json_parameters::finish() const {
  if (whole_)
    return;
  const std::vector<std::string> known(read_.begin(), read_.end());
  for (const auto& [key, value] : object_.items())
    if (!read_.contains(key))
      throw user_error(where_ + "." + key + ": unknown key" + did_you_mean(key, known)
                       + (known.empty() ? "; there are none" : "; known here: " + quoted_list(known)));
}

} // namespace millrace::plugins
