#include "actors/plugin_registry.hpp"

#include "actors/plugin_actor.hpp"
#include "policy_loss/plugins.hpp"
#include "rollout/environment.hpp"
#include "rollout/generator_plugins.hpp"
#include "rollout/plugin_reward.hpp"
#include "rollout/plugin_source.hpp"
#include "rollout/reward_parameters.hpp"
#include "runtime/error.hpp"
#include "runtime/metrics/metric.hpp"
#include "runtime/plugins/json_parameters.hpp"
#include "runtime/plugins/plugin_host.hpp"

#include <map>

namespace millrace {

namespace {

/// Plugins by their real path.
std::map<std::string, plugins::loaded_plugin>& loaded() {
  static std::map<std::string, plugins::loaded_plugin> all;
  return all;
}

std::string real_path(const std::string& path) {
  std::error_code failed;
  auto real = std::filesystem::canonical(path, failed);
  return failed ? path : real.string();
}

void add_actors(const plugins::loaded_plugin& p) {
  for (const auto& [name, r] : p.actors) {
    if (name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") != std::string::npos)
      plugins::blame(r.from, "its name", "expected a-z, 0-9, _ and -");
    if (!catalogue(name).empty())
      plugins::blame(r.from, "its name", "is that of a built-in actor's kind");
    actor_kinds().add(name, r.help, r);
    declare_plugin_actor(name);
  }
}

void add(const plugins::loaded_plugin& p, const plugin_settings& given, const settings& s) {
  try {
    if (given.isolated) {
      add_isolated_rewards(p, given.config.dump(), s.reward.workers, s.reward.timeout_s);
      return;
    }
    add_plugin_rewards(p);
    add_plugin_sources(p);
    policy_loss::add_plugin(p);
    add_plugin_environments(p);
    generation::add_plugin_generators(p);
    add_actors(p);
  } catch (const user_error& e) {
    const std::string text = e.what();
    throw user_error(text.starts_with("plugin ") ? text : "plugin " + p.file + ": " + text);
  }
}

std::string file_of(const std::string& kind, const std::string& name) {
  for (const auto& [path, p] : loaded())
    for (const auto& e : p.entries())
      if (e.kind == kind && e.name == name)
        return p.file;
  return {};
}

template <class Entries>
void list(std::vector<known_name>& out, const std::string& kind, const Entries& entries) {
  for (const auto& [name, e] : entries)
    out.push_back({kind, name, e.help, file_of(kind, name), {}});
}

option_row row_of(const policy_loss::param_description& p) {
  return {p.name, p.default_, p.range.empty() ? p.type : p.type + ", " + p.range, p.meaning};
}

template <class Registry>
void list_functions(std::vector<known_name>& out, const std::string& kind, const Registry& all) {
  for (const auto& name : all.names()) {
    known_name k{kind, name, {}, file_of(kind, name), {}};
    if (k.from.empty())
      for (const auto& p : all.describe(name))
        k.parameters.push_back(row_of(p));
    for (const auto& [path, p] : loaded())
      for (const auto& e : p.entries())
        if (e.kind == kind && e.name == name)
          k.help = e.help;
    out.push_back(std::move(k));
  }
}

} // namespace

registry<plugins::registered<plugin::actor_factory>>& actor_kinds() {
  static registry<plugins::registered<plugin::actor_factory>> all("kind of actor");
  return all;
}

void load_plugins(const settings& s) {
  for (const auto& given : s.plugins) {
    const auto path = real_path(given.path);
    if (loaded().contains(path))
      continue;
    auto p = given.isolated ? plugins::describe_isolated(given.path)
                            : plugins::load(given.path, given.config.dump());
    add(p, given, s);
    loaded().emplace(path, std::move(p));
  }
  for (std::size_t i = 0; i < s.actors.size(); ++i)
    static_cast<void>(
      actor_kinds().get(s.actors[i].kind, "actors[" + std::to_string(i) + "].kind"));
  if (const auto& name = s.rollout.environment.name; !name.empty())
    static_cast<void>(environments().get(name, "rollout.environment.name"));
  generation::check_plugin_names(s.generator);
}

void check_plugin_parameters(const settings& s, const model::model_config* model) {
  if (const auto& world = s.rollout.environment; !world.name.empty())
    static_cast<void>(plugins::make(environments().get(world.name, "rollout.environment.name"),
                                    world.params, "rollout.environment.params"));
  generation::check_plugin_parameters(s.generator, model);
  for (std::size_t i = 0; i < s.actors.size(); ++i) {
    const auto where = "actors[" + std::to_string(i) + "]";
    try_plugin_actor(actor_kinds().get(s.actors[i].kind, where + ".kind"),
                     {s.actors[i].kind, where + ".params", s.actors[i].params, {}});
  }
}

std::vector<known_name> known_names() {
  std::vector<known_name> out;
  list(out, "reward", rewards().entries());
  for (auto& reward : out)
    reward.parameters = reward_parameters(reward.name);
  list(out, "prompt source", prompt_sources().entries());
  list(out, "environment", environments().entries());
  list_functions(out, "loss", policy_loss::known_losses());
  list_functions(out, "advantage", policy_loss::known_advantages());
  list(out, "sampler", generation::samplers().entries());
  list(out, "generator", generation::backends().entries());
  list(out, "actor", actor_kinds().entries());
  return out;
}

plugins::loaded_plugin look_into(const std::string& file) { return plugins::load(file); }

} // namespace millrace
