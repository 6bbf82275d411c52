// Calls a function that no library has.
#include <millrace/plugin.hpp>

int function_that_is_nowhere();

MILLRACE_PLUGIN("unresolved", "") {
  if (function_that_is_nowhere() > 0)
    add.add_reward("never", "", nullptr);
}
