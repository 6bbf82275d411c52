#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>

namespace millrace {

/// Reads a file of JSON objects, one a line: UTF-8, with or without a byte-order mark, lines ending
/// in LF or CR LF, empty lines passed over. Calls `take` for each with the number of its line.
/// \throws user_error naming file and line when the file can't be read, a line is longer than
/// `longest_line` bytes, or it is not one JSON object
void each_json_line(const std::filesystem::path& file, std::size_t longest_line,
                    const std::function<void(std::int64_t line, nlohmann::json object)>& take);

} // namespace millrace
