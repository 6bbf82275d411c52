// `millrace options`: the table of all options.

#include "runtime/config/options.hpp"

namespace millrace {
namespace {

/// Columns that UTF-8 text takes up, for the letters used here.
std::size_t width(std::string_view text) {
  std::size_t n = 0;
  for (char c : text)
    n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t columns) {
  std::string out, line;
  const auto flush = [&] {
    out += std::string(indent, ' ') + line + "\n";
    line.clear();
  };
  for (std::size_t from = 0; from < text.size();) {
    const auto end = std::min(text.find(' ', from), text.size());
    const auto word = text.substr(from, end - from);
    if (!line.empty() && indent + width(line) + 1 + width(word) > columns)
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

} // namespace

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
          out += (out.empty() ? "" : "\n") + section + ": " + info.help + "\n";
    }
    auto head = "  " + o.path + " = " + o.value().dump();
    auto kind = o.type_name();
    if (const auto range = o.range_text(); !range.empty())
      kind = kind == "choice" ? range : kind + ", " + range;
    const auto gap = width(head) < 44 ? 44 - width(head) : 2;
    if (width(head) + gap + width(kind) <= columns)
      out += head + std::string(gap, ' ') + kind + "\n";
    else
      out += head + "\n" + wrapped(kind, 6, columns);
    out += wrapped(o.help, 6, columns);
  }
  return out;
}

} // namespace millrace
