#include "actors/commands.hpp"
#include "actors/plugin_registry.hpp"
#include "runtime/config/config.hpp"
#include "runtime/plugins/plugin_host.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>

namespace millrace {

namespace {

void print(const std::string& kind, const std::string& name, const std::string& help,
           const std::string& from, std::size_t width) {
  std::printf("  %-14s %-*s  %s%s\n", kind.c_str(), static_cast<int>(width), name.c_str(),
              help.c_str(), from.empty() ? "" : (" [" + from + "]").c_str());
}

void print_plugin(const plugins::loaded_plugin& p) {
  std::printf("%s: %s%s%s\n", p.file.c_str(), p.name.c_str(), p.description.empty() ? "" : ", ",
              p.description.c_str());
  std::size_t width = 0;
  for (const auto& e : p.entries())
    width = std::max(width, e.name.size());
  for (const auto& e : p.entries())
    print(e.kind, e.name, e.help, {}, width);
}

void print_known() {
  const auto all = known_names();
  std::size_t width = 0;
  for (const auto& k : all)
    width = std::max(width, k.name.size());
  for (const auto& k : all)
    print(k.kind, k.name, k.help, k.from, width);
}

} // namespace

void add_plugin_commands(CLI::App& app, int& status) {
  auto* cmd = app.add_subcommand(
    "plugins", "List what a configuration can name, built in or of plugins, with its help");
  auto files = std::make_shared<std::vector<std::string>>();
  auto config = std::make_shared<std::string>();
  cmd->add_option("files", *files, "Plugins to look into; none: all that is built in");
  cmd->add_option("--config", *config, "Also what the plugins of this configuration register");
  cmd->callback([=, &status] {
    for (const auto& file : *files)
      print_plugin(look_into(file));
    if (!config->empty())
      load_plugins(load_settings(*config));
    if (files->empty() || !config->empty())
      print_known();
    status = 0;
  });
  auto* host = app.add_subcommand("plugin-host", "Serve an isolated plugin (millrace starts this)");
  host->group(""); // not for people
  auto arguments = std::make_shared<std::vector<std::string>>();
  host->add_option("arguments", *arguments);
  host->callback([=, &status] { status = plugins::run_plugin_host(*arguments); });
}

} // namespace millrace
