#pragma once

#include "runtime/error.hpp"
#include "runtime/nearest.hpp"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// Factories by name, with a line of help each. Filled while the process starts, only read after.
/// `Factory` is usually a std::function that makes the thing from its JSON parameters.
template <class Factory>
class registry {
public:
  struct entry {
    std::string help;
    Factory make;
  };

  /// `kind` names what is registered, in errors: "reward", "loss".
  explicit registry(std::string kind) : kind_(std::move(kind)) {}

  /// \throws user_error when the name is empty or taken: two plugins want the same.
  void add(std::string name, std::string help, Factory make) {
    if (name.empty())
      throw user_error("a " + kind_ + " needs a name to be registered");
    if (entries_.contains(name))
      throw user_error("the " + kind_ + " \"" + name
                       + "\" is registered twice; two plugins may have chosen the same name");
    entries_.emplace(std::move(name), entry{std::move(help), std::move(make)});
  }

  /// \param where the option that holds the name ("reward.kind"), for the error
  /// \throws user_error naming the nearest one when there is none of this name
  [[nodiscard]] const Factory& get(std::string_view name, std::string_view where) const {
    const auto at = entries_.find(name);
    if (at != entries_.end())
      return at->second.make;
    const auto known = names();
    throw user_error(std::string(where) + ": found \"" + std::string(name) + "\", expected a "
                     + kind_ + (known.empty() ? "; none is registered"
                                              : " among " + quoted_list(known))
                     + did_you_mean(name, known));
  }

  [[nodiscard]] bool contains(std::string_view name) const { return entries_.contains(name); }

  /// In alphabetical order.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& [name, e] : entries_)
      out.push_back(name);
    return out;
  }

  [[nodiscard]] const std::map<std::string, entry, std::less<>>& entries() const {
    return entries_;
  }
  [[nodiscard]] const std::string& kind() const { return kind_; }

private:
  std::string kind_;
  std::map<std::string, entry, std::less<>> entries_;
};

} // namespace millrace
