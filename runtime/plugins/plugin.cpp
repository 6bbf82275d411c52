#include "runtime/plugins/plugin.hpp"

#include "runtime/error.hpp"

#include <cstring>
#include <cxxabi.h>
#include <dlfcn.h>
#include <fstream>
#include <typeinfo>

namespace millrace::plugins {

namespace {

constexpr const char* entry_point = "millrace_plugin_entry";

/// Takes what the plugin registers. Nothing of it is kept unless all of it is right.
class collector final : public plugin::registrar {
public:
  collector(loaded_plugin& into, std::string config) : into_(into), config_(std::move(config)) {}

  void add_reward(std::string name, std::string help, plugin::reward_factory make) override {
    take(into_.rewards, "reward", std::move(name), std::move(help), std::move(make));
  }
  void add_prompt_source(std::string name, std::string help,
                         plugin::prompt_source_factory make) override {
    take(into_.prompt_sources, "prompt source", std::move(name), std::move(help), std::move(make));
  }
  void add_environment(std::string name, std::string help,
                       plugin::environment_factory make) override {
    take(into_.environments, "environment", std::move(name), std::move(help), std::move(make));
  }
  void add_loss(std::string name, std::string help, plugin::loss_factory make) override {
    take(into_.losses, "loss", std::move(name), std::move(help), std::move(make));
  }
  void add_advantage(std::string name, std::string help, plugin::advantage_factory make) override {
    take(into_.advantages, "advantage", std::move(name), std::move(help), std::move(make));
  }
  void add_sampler(std::string name, std::string help, plugin::sampler_factory make) override {
    take(into_.samplers, "sampler", std::move(name), std::move(help), std::move(make));
  }
  void add_generator(std::string name, std::string help, plugin::generator_factory make) override {
    take(into_.generators, "generator", std::move(name), std::move(help), std::move(make));
  }
  void add_actor(std::string name, std::string help, plugin::actor_factory make) override {
    take(into_.actors, "actor", std::move(name), std::move(help), std::move(make));
  }

private:
  template <class Factory>
  void take(by_name<Factory>& all, const char* kind, std::string name, std::string help,
            Factory make) {
    const auto fail = [&](const std::string& what) {
      throw user_error("plugin " + into_.file + ": " + what);
    };
    if (name.empty())
      fail(std::string("a ") + kind + " is registered without a name");
    if (!make)
      fail(std::string(kind) + " \"" + name + "\" is registered without a factory");
    origin from{into_.file, kind, name, config_};
    if (!all.emplace(name, registered<Factory>{std::move(help), std::move(from), std::move(make)})
           .second)
      fail(std::string("registers the ") + kind + " \"" + name + "\" twice");
  }

  loaded_plugin& into_;
  std::string config_;
};

bool is_elf(const std::filesystem::path& file) {
  char magic[4] = {};
  std::ifstream in(file, std::ios::binary);
  return in.read(magic, 4) && std::memcmp(magic, "\177ELF", 4) == 0;
}

void check(const plugin::descriptor& d, const std::string& file) {
  if (d.abi != plugin::abi_version)
    throw user_error("plugin " + file + ": was built for version " + std::to_string(d.abi)
                     + " of the plugin interface, this millrace has version "
                     + std::to_string(plugin::abi_version)
                     + "; build it again with this millrace's header");
  if (std::strcmp(d.toolchain ? d.toolchain : "?", plugin::toolchain) != 0)
    throw user_error("plugin " + file + ": was built with " + (d.toolchain ? d.toolchain : "?")
                     + ", this millrace with " + plugin::toolchain
                     + "; build it with the same C++ library");
  if (!d.declare)
    throw user_error("plugin " + file + ": its descriptor has no function that registers factories");
}

} // namespace

std::string origin::text() const { return "plugin " + file + ": " + kind + " \"" + name + "\""; }

std::vector<loaded_plugin::entry> loaded_plugin::entries() const {
  std::vector<entry> out;
  const auto all = [&](const auto& map) {
    for (const auto& [name, r] : map)
      out.push_back({r.from.kind, name, r.help});
  };
  all(rewards), all(prompt_sources), all(environments), all(losses), all(advantages);
  all(samplers), all(generators), all(actors);
  return out;
}

loaded_plugin load(const std::filesystem::path& file, const std::string& config) {
  loaded_plugin out;
  out.file = file.string();
  const auto at = "plugin " + out.file + ": ";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored))
    throw user_error(at + "there is no such file; relative paths start at "
                     + std::filesystem::current_path(ignored).string());
  if (!is_elf(file))
    throw user_error(at + "is not a shared library (it does not begin with ELF's magic number)");
  // Never closed: factories, virtual tables and whatever it registered elsewhere stay valid.
  void* library = dlopen(std::filesystem::absolute(file).c_str(),
                         RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    const char* why = dlerror();
    throw user_error(at + "can't be loaded: " + (why ? why : "unknown reason"));
  }
  auto* entry = reinterpret_cast<const plugin::descriptor* (*)()>(dlsym(library, entry_point));
  if (!entry)
    throw user_error(at + "is a shared library, but no Millrace plugin: it has no symbol "
                     + entry_point + "; write MILLRACE_PLUGIN(name, description) { … } in it");
  const plugin::descriptor* d = nullptr;
  try {
    d = entry();
  } catch (...) {
    throw user_error(at + "its entry point threw: " + thrown_text());
  }
  if (!d)
    throw user_error(at + "its entry point returned nothing");
  check(*d, out.file);
  out.name = d->name ? d->name : "";
  out.description = d->description ? d->description : "";
  collector all(out, config);
  try {
    d->declare(all);
  } catch (const user_error&) {
    throw;
  } catch (...) {
    throw user_error(at + "registering its factories threw: " + thrown_text());
  }
  if (out.entries().empty())
    throw user_error(at + "registers nothing");
  return out;
}

std::string thrown_text() {
  try {
    throw;
  } catch (const std::exception& e) {
    return e.what();
  } catch (const std::string& text) {
    return text;
  } catch (const char* text) {
    return text ? text : "(null)";
  } catch (...) {
    const auto* type = abi::__cxa_current_exception_type();
    if (!type)
      return "an exception of unknown type";
    int status = 0;
    char* name = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
    std::string text = "an exception of type " + std::string(name ? name : type->name());
    std::free(name);
    return text;
  }
}

void blame(const origin& from, std::string_view doing, const std::string& what) {
  throw user_error(from.text() + ": " + std::string(doing) + ": " + what);
}

} // namespace millrace::plugins
