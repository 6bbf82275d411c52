#include <millrace/plugin.hpp>

MILLRACE_PLUGIN("empty", "Registers nothing") {}
