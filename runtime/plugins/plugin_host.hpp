#pragma once

#include "runtime/plugins/plugin.hpp"

#include <string>
#include <vector>

namespace millrace::plugins {

/// A reward of a plugin in a process of its own, spoken to in JSON lines (child_pool.hpp,
/// rollout/program_reward.hpp). The process is `millrace-plugin-host`, which links neither torch nor
/// CAF, so that starting it takes milliseconds.

/// The program with its first arguments, as this executable has it beside it.
[[nodiscard]] std::vector<std::string> host_command();

/// What a plugin registers, without loading it into this process. \throws user_error as load() does,
/// or when loading it kills the process
[[nodiscard]] loaded_plugin describe_isolated(const std::filesystem::path& file);

/// The command that serves one of its rewards.
[[nodiscard]] std::vector<std::string> serve_command(const std::string& file,
                                                     const std::string& name,
                                                     const std::string& params,
                                                     const std::string& where,
                                                     const std::string& config);

/// The line to which the process answers {"ready": true}, or {"error": why the reward wasn't made}.
inline constexpr const char* ready_question = "{\"ready\":true}";

/// main() of that program: `FILE` alone describes the plugin, `FILE NAME PARAMS WHERE CONFIG` serves
/// the reward NAME until standard input ends.
int run_plugin_host(const std::vector<std::string>& arguments);

} // namespace millrace::plugins
