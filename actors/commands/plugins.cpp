#include "actors/commands.hpp"
#include "actors/plugin_registry.hpp"
#include "runtime/config/config.hpp"
#include "runtime/error.hpp"
#include "runtime/nearest.hpp"
#include "runtime/plugins/plugin_host.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

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

/// Parameters that all built-in losses take, and which are therefore told once.
std::set<std::string> shared_parameters(const std::vector<known_name>& all) {
  std::map<std::string, std::size_t> counts;
  std::size_t members = 0;
  for (const auto& k : all) {
    if (k.kind != "loss" || !k.from.empty())
      continue;
    ++members;
    for (const auto& p : k.parameters)
      ++counts[p.name];
  }
  std::set<std::string> out;
  for (const auto& [name, count] : counts)
    if (members > 1 && count == members)
      out.insert(name);
  return out;
}

std::string listed(const std::vector<option_row>& parameters,
                   const std::set<std::string>& without) {
  std::string out;
  for (const auto& p : parameters)
    if (!without.contains(p.name))
      out += (out.empty() ? "" : ", ") + p.name;
  return out;
}

void print_known() {
  const auto all = known_names();
  const auto shared = shared_parameters(all);
  std::size_t width = 0;
  for (const auto& k : all)
    width = std::max(width, k.name.size());
  for (const auto& k : all) {
    const auto own = listed(k.parameters, k.kind == "loss" ? shared : std::set<std::string>{});
    print(k.kind, k.name, k.help.empty() ? own : k.help, k.from, width);
  }
  std::string of_all;
  for (const auto& name : shared)
    of_all += (of_all.empty() ? "" : ", ") + name;
  std::printf("\nOf losses and advantages the parameters are listed; every loss also takes %s.\n"
              "`millrace plugins NAME` shows one's parameters with default, range and meaning.\n",
              of_all.c_str());
}

/// What is of this name, with its parameters. \throws user_error when nothing is
void print_named(const std::string& name) {
  const auto all = known_names();
  std::vector<std::string> names;
  bool found = false;
  for (const auto& k : all) {
    names.push_back(k.name);
    if (k.name != name)
      continue;
    found = true;
    std::printf("%s %s%s%s\n", k.kind.c_str(), name.c_str(), k.help.empty() ? "" : ": ",
                k.help.c_str());
    for (const auto& p : k.parameters)
      std::fputs(format_row(p).c_str(), stdout);
    if (!k.from.empty())
      std::printf("  of the plugin %s, which alone knows its parameters\n", k.from.c_str());
    else if (k.parameters.empty())
      std::printf("  no parameters\n");
  }
  if (!found)
    throw user_error("plugins: found \"" + name + "\", expected a plugin's file, or a name that "
                     "`millrace plugins` lists" + did_you_mean(name, names));
}

bool is_file(const std::string& what) {
  return what.find('/') != std::string::npos || what.ends_with(".so");
}

} // namespace

void add_plugin_commands(CLI::App& app, int& status) {
  auto* cmd = app.add_subcommand(
    "plugins", "List what a configuration can name, built in or of plugins, with its parameters");
  auto what = std::make_shared<std::vector<std::string>>();
  auto config = std::make_shared<std::string>();
  cmd->add_option("what", *what,
                  "Plugins to look into, or names whose parameters to show; none: list all");
  cmd->add_option("--config", *config, "Know also what the plugins of this configuration register");
  cmd->callback([=, &status] {
    if (!config->empty())
      load_plugins(load_settings(*config));
    for (const auto& w : *what) {
      if (is_file(w))
        print_plugin(look_into(w));
      else
        print_named(w);
    }
    if (what->empty())
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
