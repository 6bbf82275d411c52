#include "runtime/plugins/plugin_host.hpp"

int main(int argc, char** argv) {
  return millrace::plugins::run_plugin_host({argv + 1, argv + argc});
}
