#include "rollout/json_lines.hpp"

#include "rollout/final_answer.hpp"
#include "runtime/config/options.hpp"
#include "runtime/error.hpp"

#include <nlohmann/json.hpp>

#include <fstream>

namespace millrace {

namespace {

/// The beginning of a line as it can be shown: printable ASCII, the rest as dots.
std::string excerpt(std::string_view line) {
  auto text = std::string(line.substr(0, 60));
  for (auto& c : text)
    if (c < ' ' || c > '~')
      c = '.';
  return "\"" + text + (line.size() > 60 ? "…" : "") + "\"";
}

nlohmann::json parse_line(std::string_view line, const std::string& where, bool last) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::parse_error& e) {
    throw user_error(where + ": found " + excerpt(line) + ", expected one JSON object a line; "
                     "it stops being JSON at byte " + std::to_string(e.byte)
                     + (last ? ". It is the last line and has no line end: the file may be cut off"
                             : ""));
  }
  if (!object.is_object())
    throw user_error(where + ": found " + describe_value(object)
                     + ", expected one JSON object a line");
  return object;
}

} // namespace

void each_json_line(const std::filesystem::path& file, std::size_t longest_line,
                    const std::function<void(std::int64_t, nlohmann::json)>& take) {
  const auto name = file.string();
  std::error_code error;
  if (std::filesystem::is_directory(file, error))
    throw user_error(name + ": is a folder, expected a file of JSON lines");
  std::ifstream in(file, std::ios::binary);
  if (!in)
    throw user_error(name + ": can't be opened; check that it exists and may be read");
  std::string line;
  std::string block(std::size_t{1} << 16, '\0');
  std::int64_t number = 1;
  auto done = [&](bool last) {
    std::string_view text = line;
    if (number == 1 && text.substr(0, 3) == "\xEF\xBB\xBF")
      text.remove_prefix(3);
    if (!trimmed(text).empty()) // its spaces include the CR of a CR LF
      take(number, parse_line(trimmed(text), name + ":" + std::to_string(number), last));
    line.clear();
    ++number;
  };
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())), in.gcount() > 0) {
    std::string_view rest(block.data(), static_cast<std::size_t>(in.gcount()));
    while (!rest.empty()) {
      const auto end = rest.find('\n');
      line += rest.substr(0, end);
      if (line.size() > longest_line)
        throw user_error(name + ":" + std::to_string(number) + ": is longer than "
                         + std::to_string(longest_line)
                         + " bytes, expected one JSON object a line; is it a file of JSON lines?");
      if (end == std::string_view::npos)
        break;
      done(false);
      rest.remove_prefix(end + 1);
    }
  }
  if (in.bad())
    throw user_error(name + ": reading failed after line " + std::to_string(number));
  if (!line.empty())
    done(true);
}

} // namespace millrace
