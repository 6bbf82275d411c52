#pragma once

#include <millrace/plugin.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::plugins {

/// Who is at fault when a plugin fails: "plugin conf/libx.so: reward "brevity"".
struct origin {
  std::string file;
  std::string kind; ///< "reward", "loss", …
  std::string name;
  std::string config = "{}"; ///< the plugin's own section, as JSON text

  [[nodiscard]] std::string text() const;
};

template <class Factory>
struct registered {
  std::string help;
  origin from;
  Factory make;
};
template <class Factory>
using by_name = std::map<std::string, registered<Factory>, std::less<>>;

/// What a plugin's library registered.
struct loaded_plugin {
  std::string file, name, description;
  by_name<plugin::reward_factory> rewards;
  by_name<plugin::prompt_source_factory> prompt_sources;
  by_name<plugin::environment_factory> environments;
  by_name<plugin::loss_factory> losses;
  by_name<plugin::advantage_factory> advantages;
  by_name<plugin::sampler_factory> samplers;
  by_name<plugin::generator_factory> generators;
  by_name<plugin::actor_factory> actors;

  struct entry {
    std::string kind, name, help;
  };
  /// Everything, by kind and name.
  [[nodiscard]] std::vector<entry> entries() const;
};

/// Opens a plugin and takes its factories; it stays in memory for good. `config` is its own section.
/// \throws user_error naming the file when it isn't there, is no plugin, was built against another
/// ABI or library, or registers nothing, or a name twice, or throws
[[nodiscard]] loaded_plugin load(const std::filesystem::path& file, const std::string& config = "{}");

/// The text of the exception being handled, whatever its type. Only in a catch block.
[[nodiscard]] std::string thrown_text();

/// Calls a plugin's code. What it throws becomes a user_error that names the plugin and `doing`.
template <class Call>
auto guarded(const origin& from, std::string_view doing, Call&& call) -> decltype(call());

[[noreturn]] void blame(const origin& from, std::string_view doing, const std::string& what);

template <class Call>
auto guarded(const origin& from, std::string_view doing, Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (...) {
    blame(from, doing, thrown_text());
  }
}

} // namespace millrace::plugins
