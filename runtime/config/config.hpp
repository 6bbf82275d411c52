#pragma once

// The configuration file: JSON with comments → settings, and back.

#include "runtime/config/settings.hpp"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// JSON text with // and /* */ comments. Duplicate keys are an error, as are syntax errors, which
/// are told with line and column. `where` names the text in errors. \throws user_error
[[nodiscard]] nlohmann::json parse_json(std::string_view text, const std::string& where);

/// The file's content as above. \throws user_error also when it can't be read.
[[nodiscard]] nlohmann::json read_json_file(const std::filesystem::path& file);

/// Reads a configuration file, applies `--set path=value` assignments in their order, and checks
/// all of it. Relative paths in it are taken as they are, from the working directory.
/// \throws user_error naming every problem found, one a line
[[nodiscard]] settings load_settings(const std::filesystem::path& file,
                                     const std::vector<std::string>& assignments = {});

/// The same from text. An empty text is no configuration, `{}` is one with all defaults.
[[nodiscard]] settings parse_settings(std::string_view text, const std::string& where,
                                      const std::vector<std::string>& assignments = {});

/// Whether this name or address is one that only its own machine reaches.
[[nodiscard]] inline bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

/// The files that the settings name must be on this machine: for whoever reads them (a cluster's
/// generators, for instance, don't). \throws user_error naming every one that is missing
void require_files(const settings& s, const std::string& where);

/// What no single option shows: options that contradict each other. Each text starts with the path
/// of the option to change. Empty when all is well.
[[nodiscard]] std::vector<std::string> contradictions(const settings& s);

/// What is allowed but probably not meant, to be shown before the run: a configuration that quietly
/// changes the mathematics. Each text starts with the path of the option concerned.
[[nodiscard]] std::vector<std::string> remarks(const settings& s);

/// Every option with its value, as it goes into the run directory; reads back as the same settings.
[[nodiscard]] std::string resolved_json(const settings& s);

/// The list for `millrace options [FILTER]`.
[[nodiscard]] std::string options_table(std::size_t columns = 100, std::string_view filter = {});

} // namespace millrace
