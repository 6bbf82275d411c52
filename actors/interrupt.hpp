#pragma once

namespace millrace {

/// From here on the first SIGINT or SIGTERM is noted, and the second ends the process at once.
void note_interrupts();
/// How many came.
[[nodiscard]] int interrupts();

} // namespace millrace
