#include "runtime/plugins/plugin_host.hpp"

#include "runtime/error.hpp"
#include "runtime/plugins/child_pool.hpp"
#include "runtime/plugins/json_parameters.hpp"
#include "runtime/readable_text.hpp"

#include <cmath>
#include <cstdio>
#include <iostream>
#include <sys/resource.h>
#include <unistd.h>

namespace millrace::plugins {

namespace {

using nlohmann::json;

std::string text_of(const json& j) {
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

plugin::finish finish_of(const std::string& name) {
  return name == "stop" ? plugin::finish::stop
                        : name == "length" ? plugin::finish::length : plugin::finish::cancelled;
}

json answer_to(const json& asked, const plugin::reward& judge, const origin& from) {
  const plugin::question q{asked.value("id", std::int64_t{0}), asked.value("question", ""),
                           asked.value("reference", "")};
  const auto answer = asked.value("answer", "");
  const auto how = finish_of(asked.value("finish", "stop"));
  const auto j = guarded(from, "judge() threw", [&] { return judge.judge(q, answer, how); });
  if (!std::isfinite(j.reward))
    blame(from, "judge()", "gave a reward that is not finite");
  return {{"reward", j.reward}, {"correct", j.correct}, {"judged", j.judged}, {"detail", j.detail}};
}

json description_of(const loaded_plugin& p) {
  json entries = json::array();
  for (const auto& e : p.entries())
    entries.push_back({{"kind", e.kind}, {"name", e.name}, {"help", e.help}});
  return {{"name", p.name}, {"description", p.description}, {"entries", entries}};
}

void serve(const std::vector<std::string>& a, std::FILE* out) {
  std::unique_ptr<plugin::reward> judge;
  origin from{a[0], "reward", a[1], a[4]};
  json problem;
  try {
    auto all = load(a[0], a[4]);
    const auto at = all.rewards.find(a[1]);
    if (at == all.rewards.end())
      throw user_error("plugin " + a[0] + ": has no reward \"" + a[1] + "\" any more");
    judge = make(at->second, json::parse(a[2], nullptr, false), a[3]);
  } catch (const std::exception& e) {
    problem = {{"error", e.what()}};
  }
  for (std::string line; std::getline(std::cin, line);) {
    json reply = problem;
    const auto asked = json::parse(line, nullptr, false);
    if (reply.is_null())
      try {
        reply = asked.contains("ready") ? json{{"ready", true}} : answer_to(asked, *judge, from);
      } catch (const std::exception& e) {
        reply = {{"error", e.what()}};
      }
    std::fprintf(out, "%s\n", text_of(reply).c_str());
    std::fflush(out);
  }
}

} // namespace

std::vector<std::string> host_command() {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  const auto host = self.parent_path() / "millrace-plugin-host";
  std::error_code ignored;
  if (std::filesystem::exists(host, ignored))
    return {host.string()};
  return {self.string(), "plugin-host"};
}

std::vector<std::string> serve_command(const std::string& file, const std::string& name,
                                       const std::string& params, const std::string& where,
                                       const std::string& config) {
  auto out = host_command();
  out.insert(out.end(), {file, name, params, where, config});
  return out;
}

loaded_plugin describe_isolated(const std::filesystem::path& file) {
  loaded_plugin out;
  out.file = file.string();
  auto command = host_command();
  command.push_back(out.file);
  std::string line;
  try {
    line = child_pool({.command = command, .timeout_s = 60}).ask("{}");
  } catch (const child_failure& e) {
    throw user_error("plugin " + out.file + ": could not be loaded in a process of its own: "
                     + e.what());
  }
  const auto j = json::parse(line, nullptr, false);
  if (j.is_object() && j.contains("error"))
    throw user_error(j["error"].get<std::string>());
  if (!j.is_object() || !j.contains("entries"))
    throw user_error("plugin " + out.file + ": was not described by " + command[0] + ": found "
                     + readable(line));
  out.name = j.value("name", "");
  out.description = j.value("description", "");
  for (const auto& e : j["entries"]) {
    const auto kind = e.value("kind", ""), name = e.value("name", "");
    if (kind != "reward")
      throw user_error("plugin " + out.file + ": isolated is true, but it registers the " + kind
                       + " \"" + name + "\", and only rewards can be in a process of their own; put "
                         "the others into another plugin, or leave isolated out");
    out.rewards.emplace(name, registered<plugin::reward_factory>{
                                e.value("help", ""), {out.file, kind, name, "{}"}, {}});
  }
  return out;
}

int run_plugin_host(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1 && arguments.size() != 5) {
    std::fputs("usage: millrace-plugin-host FILE.so [REWARD PARAMS WHERE CONFIG]\n"
               "Describes a plugin, or judges answers by JSON lines; millrace starts it.\n", stderr);
    return 2;
  }
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none); // a plugin that crashes is told about; its core is of no use
  // What the plugin prints must not come between the answers.
  auto* out = fdopen(dup(STDOUT_FILENO), "w");
  dup2(STDERR_FILENO, STDOUT_FILENO);
  if (arguments.size() == 5) {
    serve(arguments, out);
    return 0;
  }
  json reply;
  try {
    reply = description_of(load(arguments[0]));
  } catch (const std::exception& e) {
    reply = {{"error", e.what()}};
  }
  std::fprintf(out, "%s\n", text_of(reply).c_str());
  std::fflush(out);
  return 0;
}

} // namespace millrace::plugins
