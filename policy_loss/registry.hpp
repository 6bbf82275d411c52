#pragma once

#include "policy_loss/params.hpp"
#include "runtime/error.hpp"

#include <nlohmann/json.hpp>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::policy_loss {

/// Factories by name. A value: copy it and add to the copy; nothing is registered behind one's
/// back.
template <class Interface>
class registry {
public:
  /// Makes a configured object; reads every parameter that it knows from the reader.
  using factory = std::function<std::unique_ptr<Interface>(param_reader&)>;

  /// @throws millrace::user_error when the name is taken
  void add(std::string name, factory make) {
    if (!factories_.emplace(name, std::move(make)).second)
      throw user_error("\"" + name + "\" is registered already: choose another name");
  }

  [[nodiscard]] bool knows(std::string_view name) const { return factories_.contains(name); }

  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& [name, make] : factories_)
      result.push_back(name);
    return result;
  }

  /// @throws millrace::user_error for an unknown name, an unknown, ill-typed or out-of-range
  /// parameter
  [[nodiscard]] std::unique_ptr<Interface> make(std::string_view name, const nlohmann::json& params,
                                                std::string_view where) const {
    auto found = factories_.find(name);
    if (found == factories_.end())
      throw user_error(unknown_name(where, "name", name, names()));
    param_reader reader{params, where};
    auto result = found->second(reader);
    reader.finish();
    return result;
  }

  /// The parameters of `name` with default, range and meaning, in the order in which they are read.
  [[nodiscard]] std::vector<param_description> describe(std::string_view name) const {
    auto found = factories_.find(name);
    if (found == factories_.end())
      throw user_error(unknown_name("describe", "name", name, names()));
    param_reader reader{nlohmann::json::object(), name};
    static_cast<void>(found->second(reader));
    return reader.described();
  }

private:
  std::map<std::string, factory, std::less<>> factories_;
};

} // namespace millrace::policy_loss
