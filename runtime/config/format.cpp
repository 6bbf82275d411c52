// `millrace options`: the table of all options.

#include "runtime/config/option_row.hpp"
#include "runtime/config/options.hpp"
#include "runtime/short_forms.hpp"

namespace millrace {
namespace {

std::string wrapped(std::string_view text, std::size_t indent, std::size_t columns) {
  std::string out, line;
  const auto flush = [&] {
    out += std::string(indent, ' ') + line + "\n";
    line.clear();
  };
  for (std::size_t from = 0; from < text.size();) {
    const auto end = std::min(text.find(' ', from), text.size());
    const auto word = text.substr(from, end - from);
    if (!line.empty() && indent + columns_of(line) + 1 + columns_of(word) > columns)
      flush();
    line += (line.empty() ? "" : " ") + std::string(word);
    from = end + 1;
  }
  if (!line.empty())
    flush();
  return out;
}

std::string section_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? std::string{} : path.substr(0, dot);
}

option_row row_of(const option& o) {
  auto kind = o.type_name();
  if (const auto range = o.range_text(); !range.empty())
    kind = kind == "choice" ? range : kind + ", " + range;
  return {o.path, o.value().dump(), kind, o.help};
}

} // namespace

std::vector<option_row> option_rows(const option_list& list) {
  std::vector<option_row> out;
  for (const auto& o : list.options())
    out.push_back(row_of(o));
  return out;
}

std::string format_row(const option_row& row, std::size_t columns) {
  const auto head = "  " + row.name + (row.value.empty() ? "" : " = " + row.value);
  const auto gap = columns_of(head) < 44 ? 44 - columns_of(head) : 2;
  const auto fits = columns_of(head) + gap + columns_of(row.kind) <= columns;
  return head + (fits ? std::string(gap, ' ') + row.kind + "\n" : "\n" + wrapped(row.kind, 6, columns))
         + wrapped(row.help, 6, columns);
}

std::string format_options(const option_list& list, std::size_t columns, std::string_view filter) {
  columns = std::max<std::size_t>(columns, 40);
  std::string out, section;
  for (const auto& o : list.options()) {
    if (!filter.empty() && o.path.find(filter) == std::string::npos)
      continue;
    if (const auto s = section_of(o.path); s != section) {
      section = s;
      for (const auto& info : list.sections())
        if (info.path == section)
          out += (out.empty() ? "" : "\n") + wrapped(section + ": " + info.help, 0, columns);
    }
    out += format_row(row_of(o), columns);
  }
  return out;
}

} // namespace millrace
