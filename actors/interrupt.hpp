#pragma once

namespace millrace {

/// From here on the first SIGINT or SIGTERM is noted, and the second ends the process at once.
void note_interrupts();
/// How many came.
[[nodiscard]] int interrupts();
/// From here on whoever reads the output may go away (`| head`): a run goes on.
void ignore_broken_pipes();

} // namespace millrace
