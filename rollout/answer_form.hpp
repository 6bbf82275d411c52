#pragma once

#include "rollout/number.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

/// An answer in TeX in one way of writing: without spaces that only look good (\, \! \; \left \right),
/// dollar signs around it and a full stop behind it; \dfrac and \tfrac as \frac, \frac12 as
/// \frac{1}{2}, \text{…} and its like as what they hold, degrees left out. Other spaces go too. What it
/// means is not looked into: 10^{5} and 100000 stay two.
[[nodiscard]] std::string plain_form(std::string_view answer);

/// The number that an answer is: one number, perhaps with "x=" before it and a unit behind it. Nothing
/// where it is more, or something else: (1,3), 3\sqrt{2}, 2x-5, \frac{\pi}{4}, 10^{5}.
[[nodiscard]] std::optional<number> only_number(std::string_view answer);

} // namespace millrace
