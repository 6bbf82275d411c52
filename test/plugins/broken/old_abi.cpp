#include <millrace/plugin.hpp>

extern "C" const millrace::plugin::descriptor* millrace_plugin_entry() {
  static const millrace::plugin::descriptor self{99, millrace::plugin::toolchain, "old", "", nullptr};
  return &self;
}
