#pragma once

// Messages for people, to standard error and to the run directory's log file. Thread-safe.

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace millrace {

enum class log_level : std::uint8_t { debug, info, warning, error };
constexpr std::array<std::string_view, 4> names(log_level) {
  return {"debug", "info", "warning", "error"};
}

namespace log {

/// `who` is the actor or part that speaks ("trainer", "generator 2"). Several lines are kept
/// together. Messages below the level cost one comparison.
void write(log_level level, std::string_view who, std::string_view text);

inline void debug(std::string_view who, std::string_view text) {
  write(log_level::debug, who, text);
}
inline void info(std::string_view who, std::string_view text) { write(log_level::info, who, text); }
inline void warning(std::string_view who, std::string_view text) {
  write(log_level::warning, who, text);
}
inline void error(std::string_view who, std::string_view text) {
  write(log_level::error, who, text);
}

/// Least level that is written; info at start.
void set_level(log_level level);
[[nodiscard]] bool enabled(log_level level);

/// Writes to this file as well, after what it already holds; an empty path ends that. Written
/// through at once from `warning` on, otherwise every second. \throws user_error
void set_file(const std::filesystem::path& file);

/// Takes the lines that would go to standard error: a progress bar that must not be torn, or a
/// test. An empty function brings standard error back.
void set_screen(std::function<void(std::string_view line)> screen);

/// Writes out what is buffered.
void flush();

} // namespace log
} // namespace millrace
