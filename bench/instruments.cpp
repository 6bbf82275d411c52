#include "bench/instruments.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <malloc.h>
#include <sched.h>

namespace millrace::bench {

namespace {

/// A line of /proc/self/status in bytes.
double status_bytes(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key + ":"))
      return std::strtod(line.c_str() + key.size() + 1, nullptr) * 1024;
  return 0;
}

} // namespace

void note(const std::string& text) {
  std::fprintf(stderr, "  %s\n", text.c_str());
}

double seconds(const std::function<void()>& work) {
  auto began = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

void use_cores(long cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (long i = 0; i < cores; ++i)
    CPU_SET(static_cast<std::size_t>(i), &set);
  sched_setaffinity(0, sizeof set, &set);
}

peak_memory::peak_memory() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5"; // the peak starts anew
  before_ = status_bytes("VmRSS");
}

double peak_memory::bytes() const {
  return status_bytes("VmHWM") - before_;
}

} // namespace millrace::bench
