#include "runtime/config/config.hpp"

#include "runtime/config/describe.hpp"

namespace millrace {
namespace {

settings read(const nlohmann::json& value, const std::string& where,
              const std::vector<std::string>& assignments) {
  settings s;
  const auto list = options_of(s);
  problem_list problems(where);
  read_options(list, value, problems);
  std::string all;
  for (const auto& text : problems.texts())
    all += text + "\n";
  for (const auto& assignment : assignments) {
    try {
      set_option(list, assignment);
    } catch (const user_error& e) {
      all += std::string(e.what()) + "\n";
    }
  }
  if (all.empty()) { // a field that couldn't be read has its default: nothing to compare
    problem_list rest(where);
    for (const auto& text : contradictions(s))
      rest.add("", text);
    rest.throw_if_any();
    return s;
  }
  all.pop_back();
  throw user_error(all);
}

} // namespace

settings load_settings(const std::filesystem::path& file,
                       const std::vector<std::string>& assignments) {
  return read(read_json_file(file), file.string(), assignments);
}

settings parse_settings(std::string_view text, const std::string& where,
                        const std::vector<std::string>& assignments) {
  return read(parse_json(text, where), where, assignments);
}

void require_files(const settings& s, const std::string& where) {
  problem_list problems(where);
  std::error_code ignored;
  const auto here = [&] {
    return "; relative paths start at " + std::filesystem::current_path(ignored).string();
  };
  if (!s.data.file.empty() && !std::filesystem::exists(s.data.file, ignored))
    problems.add("data.file", "found \"" + s.data.file + "\", which isn't there" + here());
  if (!s.model.path.empty() && !std::filesystem::is_directory(s.model.path, ignored))
    problems.add("model.path", "found \"" + s.model.path + "\", expected a model folder" + here());
  problems.throw_if_any();
}

std::string resolved_json(const settings& s) {
  auto copy = s;
  return write_options(options_of(copy))
           .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
         + "\n";
}

std::string options_table(std::size_t columns, std::string_view filter) {
  settings s;
  return format_options(options_of(s), columns, filter);
}

} // namespace millrace
