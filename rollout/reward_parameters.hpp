#pragma once

#include "runtime/config/option_row.hpp"

#include <string_view>
#include <vector>

namespace millrace {

/// A built-in reward's parameters, as it declares them; none of a plugin's, which alone knows them.
[[nodiscard]] std::vector<option_row> reward_parameters(std::string_view name);

} // namespace millrace
