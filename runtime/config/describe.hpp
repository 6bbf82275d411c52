#pragma once

#include "runtime/config/options.hpp"
#include "runtime/config/settings.hpp"

namespace millrace {

/// All options of the configuration file, bound to `s`.
void describe(option_list& v, settings& s);

/// The same as a list.
[[nodiscard]] option_list options_of(settings& s);

} // namespace millrace
