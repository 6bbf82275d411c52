#include "rollout/program_reward.hpp"

#include "runtime/config/options.hpp"
#include "runtime/error.hpp"
#include "runtime/readable_text.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace millrace {

namespace {

verdict failed(const std::string& why) {
  verdict v;
  v.judged = false;
  v.failure = why;
  return v;
}

/// The verdict in a line of JSON, or what is wrong with the line.
verdict read_verdict(const std::string& line) {
  const auto j = nlohmann::json::parse(line, nullptr, false);
  if (!j.is_object())
    return failed("answered \"" + readable(line, 120) + "\", expected a JSON object");
  if (const auto e = j.find("error"); e != j.end())
    return failed(readable(e->is_string() ? e->get<std::string>() : e->dump()));
  const auto pay = j.find("reward");
  if (pay == j.end() || !pay->is_number() || !std::isfinite(pay->get<double>()))
    return failed("answered \"" + readable(line, 120) + "\", expected a number as \"reward\"");
  verdict v;
  v.reward = pay->get<float>();
  const auto flag = [&](const char* name, bool otherwise) {
    const auto at = j.find(name);
    return at != j.end() && at->is_boolean() ? at->get<bool>() : otherwise;
  };
  v.correct = flag("correct", v.reward > 0);
  v.judged = flag("judged", true);
  if (const auto d = j.find("detail"); d != j.end() && d->is_string())
    v.detail = d->get<std::string>();
  return v;
}

/// Whether a shell would find this program: by its path, or its name in PATH.
bool can_be_started(const std::string& program) {
  const auto runs = [](const std::filesystem::path& file) {
    return std::filesystem::is_regular_file(file) && ::access(file.c_str(), X_OK) == 0;
  };
  if (program.find('/') != std::string::npos)
    return runs(program);
  const auto* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (runs(std::filesystem::path(folder.empty() ? "." : folder) / program))
      return true;
  return false;
}

} // namespace

void describe(option_list& v, program_options& o) {
  v("command", o.command, "The program and its arguments, as a list");
  v("processes", o.processes, in_range(1, 4096), "How many of it run side by side, at most");
  v("timeout_s", o.timeout_s, above(0), "Seconds that an answer may take");
}

program_reward::program_reward(const program_options& options, std::string who)
  : who_(std::move(who)),
    pool_(std::make_unique<plugins::child_pool>(plugins::child_pool_options{
      .command = options.command, .size = options.processes, .timeout_s = options.timeout_s})) {
}

std::unique_ptr<reward> program_reward::make(const nlohmann::json& params,
                                             const std::string& where) {
  program_options o;
  read_params(o, params, "configuration", where);
  if (o.command.empty())
    throw user_error("configuration: " + where
                     + ".command: is missing; name the program and its arguments as a list");
  if (!can_be_started(o.command[0]))
    throw user_error("configuration: " + where + ".command: found \"" + o.command[0]
                     + "\", which is no program here"
                     + (o.command[0].find('/') == std::string::npos ? " (looked for in PATH)" : ""));
  return std::make_unique<program_reward>(o, "program " + o.command[0]);
}

verdict program_reward::judge(const prompt& question, std::string_view answer,
                              finish_reason finish) const {
  const nlohmann::json j{{"id", question.id},
                         {"question", question.text},
                         {"reference", question.answer},
                         {"answer", answer},
                         {"finish", to_string(finish)}};
  verdict v;
  try {
    v = read_verdict(
      pool_->ask(j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
  } catch (const plugins::child_failure& e) {
    v = failed(e.what());
  }
  if (!v.failure.empty())
    v.failure = who_ + ": " + v.failure;
  return v;
}

std::string program_reward::ask(const std::string& line) const {
  try {
    return pool_->ask(line);
  } catch (const plugins::child_failure& e) {
    throw user_error(who_ + ": " + e.what());
  }
}

} // namespace millrace
