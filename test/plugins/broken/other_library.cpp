#include <millrace/plugin.hpp>

extern "C" const millrace::plugin::descriptor* millrace_plugin_entry() {
  static const millrace::plugin::descriptor self{millrace::plugin::abi_version, "another C++ library",
                                                 "other", "", nullptr};
  return &self;
}
