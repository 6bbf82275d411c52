#pragma once

#include <string_view>

namespace millrace::policy_loss {

/// What to write instead, where `name` is no loss (no advantage) here but known in the field, or one of
/// the other kind: a sentence for the end of an error. Empty where nothing is known of it.
[[nodiscard]] std::string_view loss_called(std::string_view name);
[[nodiscard]] std::string_view advantage_called(std::string_view name);

} // namespace millrace::policy_loss
