#pragma once

#include "runtime/plugins/plugin.hpp"

#include <nlohmann/json.hpp>

#include <set>
#include <string>

namespace millrace::plugins {

/// Parameters of the configuration as a plugin reads them.
class json_parameters final : public plugin::parameters {
public:
  /// `where` is the object's path in the configuration ("reward.params").
  /// \throws user_error unless it is an object or null
  json_parameters(const nlohmann::json& object, std::string where, std::string plugin_config);

  [[nodiscard]] const std::string& json() const override;
  [[nodiscard]] double number(std::string_view key, double otherwise) const override;
  [[nodiscard]] std::int64_t integer(std::string_view key, std::int64_t otherwise) const override;
  [[nodiscard]] bool boolean(std::string_view key, bool otherwise) const override;
  [[nodiscard]] std::string text(std::string_view key, std::string otherwise) const override;
  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const override;
  [[nodiscard]] const std::string& plugin_config() const override { return plugin_config_; }

  /// \throws user_error naming a key that was not read, and the nearest one that was
  void finish() const;

private:
  const nlohmann::json* take(std::string_view key) const;

  nlohmann::json object_;
  std::string text_, where_, plugin_config_;
  mutable std::set<std::string, std::less<>> read_;
  mutable bool whole_ = false; ///< json() was asked for
};

/// Makes what a factory makes; `more` are its arguments after the parameters. What it throws becomes
/// a user_error that names plugin, kind and name; nothing made is one too.
template <class Factory, class... More>
auto make(const registered<Factory>& r, const nlohmann::json& params, const std::string& where,
          More&&... more) {
  json_parameters p(params, where, r.from.config);
  auto made = guarded(r.from, "its factory threw", [&] {
    return r.make(p, std::forward<More>(more)...);
  });
  if (!made)
    blame(r.from, "its factory", "made nothing");
  p.finish();
  return made;
}

} // namespace millrace::plugins
