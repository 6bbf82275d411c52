#pragma once

#include "runtime/error.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <utility>

namespace millrace::model {

/// A value in a JSON file together with its place, so that every complaint names both. A member
/// that is not there reads as null.
class json_place {
public:
  json_place(const nlohmann::json& value, std::string where)
    : value_(&value), where_(std::move(where)) {}

  [[nodiscard]] const nlohmann::json& value() const { return *value_; }
  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] bool is_null() const { return value_->is_null(); }

  /// Throws user_error: the place, `what`, and what was found there.
  [[noreturn]] void fail(const std::string& what) const {
    auto found = value_->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (found.size() > 120)
      found = found.substr(0, 117) + "...";
    throw user_error(where_ + ": found " + found + "; " + what);
  }

  [[nodiscard]] json_place operator[](const std::string& key) const {
    static const nlohmann::json nothing;
    if (!value_->is_object())
      fail("expected an object");
    const auto found = value_->find(key);
    return {found == value_->end() ? nothing : *found, where_ + "." + key};
  }

  [[nodiscard]] std::size_t size() const {
    if (!value_->is_array())
      fail("expected a list");
    return value_->size();
  }
  [[nodiscard]] json_place at(std::size_t i) const {
    return {(*value_)[i], where_ + "[" + std::to_string(i) + "]"};
  }

  [[nodiscard]] const std::string& text() const {
    if (!value_->is_string())
      fail("expected a string");
    return value_->get_ref<const std::string&>();
  }
  /// `otherwise` where it is null.
  [[nodiscard]] bool flag(bool otherwise) const {
    if (!value_->is_boolean() && !is_null())
      fail("expected true or false");
    return is_null() ? otherwise : value_->get<bool>();
  }
  /// A token id: 0 … 2^24 − 1.
  [[nodiscard]] std::int32_t id() const {
    if (!value_->is_number_unsigned() || value_->get<std::uint64_t>() >= 1U << 24)
      fail("expected a token id, 0 … 16777215");
    return value_->get<std::int32_t>();
  }
  [[nodiscard]] std::string type() const { return (*this)["type"].text(); }

private:
  const nlohmann::json* value_;
  std::string where_;
};

} // namespace millrace::model
