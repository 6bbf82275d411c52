#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace millrace {

class option_list;

/// An option, or a parameter of what an option names, as it is shown to people.
struct option_row {
  std::string name;
  std::string value; ///< present or default; "" where there is none
  std::string kind;  ///< type and range: "number, at least 0"
  std::string help;
};

[[nodiscard]] std::vector<option_row> option_rows(const option_list& list);

/// Its lines in `millrace options` and `millrace plugins`, wrapped at `columns`.
[[nodiscard]] std::string format_row(const option_row& row, std::size_t columns = 100);

} // namespace millrace
