// JSON text → value, with errors that a user can act on.

#include "runtime/atomic_file.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/options.hpp"

#include <cstdio>
#include <set>

namespace millrace {
namespace {

/// Follows the parser to name keys that an object has twice; the parser itself keeps the last.
class duplicate_finder {
public:
  using event = nlohmann::json::parse_event_t;

  bool operator()(int, event e, nlohmann::json& value) {
    switch (e) {
      case event::object_start:
      case event::array_start: stack_.push_back({e == event::array_start, {}, {}, 0}); break;
      case event::key: {
        auto& top = stack_.back();
        top.key = value.get<std::string>();
        if (!top.seen.insert(top.key).second)
          duplicates.push_back(path());
        break;
      }
      case event::object_end:
      case event::array_end: stack_.pop_back(); [[fallthrough]];
      case event::value:
        if (!stack_.empty())
          ++stack_.back().index;
        break;
    }
    return true;
  }

  std::vector<std::string> duplicates;

private:
  struct level {
    bool array;
    std::string key;
    std::set<std::string> seen;
    std::size_t index;
  };

  std::string path() const {
    std::string out;
    for (const auto& l : stack_) {
      if (l.array)
        out += "[" + std::to_string(l.index) + "]";
      else
        out += (out.empty() ? "" : ".") + l.key;
    }
    return out;
  }

  std::vector<level> stack_;
};

void replace(std::string& text, std::string_view from, std::string_view to) {
  if (const auto at = text.find(from); at != std::string::npos)
    text.replace(at, from.size(), to);
}

/// "[json.exception.…] parse error at line 3, column 7: syntax error while parsing X - Y" →
/// "file:3:7: not valid JSON: while parsing X: Y".
std::string syntax_message(const std::string& where, const nlohmann::json::exception& e) {
  std::string text = e.what();
  if (const auto end = text.find("] "); end != std::string::npos)
    text.erase(0, end + 2);
  std::size_t line = 0, column = 0;
  int used = 0;
  if (std::sscanf(text.c_str(), "parse error at line %zu, column %zu: %n", &line, &column, &used) == 2
      && used > 0)
    text.erase(0, std::size_t(used));
  replace(text, "syntax error ", "");
  replace(text, " - ", ": ");
  for (const char* trailing : {"unexpected '}'; expected string literal", "unexpected ']'; expected '['"})
    if (text.find(trailing) != std::string::npos)
      text += " (is there a comma too many before it?)";
  auto place = where;
  if (line > 0)
    place += ":" + std::to_string(line) + ":" + std::to_string(column);
  return place + ": not valid JSON: " + text;
}

} // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  duplicate_finder finder;
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(text, std::ref(finder), true, true);
  } catch (const nlohmann::json::exception& e) {
    throw user_error(syntax_message(where, e));
  }
  problem_list problems(where);
  for (const auto& path : finder.duplicates)
    problems.add(path, "this key is there twice: remove one");
  problems.throw_if_any();
  return value;
}

nlohmann::json read_json_file(const std::filesystem::path& file) {
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored))
    throw user_error(file.string() + ": is a folder, expected a JSON file");
  const auto text = read_file(file);
  if (text.empty())
    throw user_error(file.string() + ": is empty, expected a JSON object; {} has all defaults");
  return parse_json(text, file.string());
}

} // namespace millrace
