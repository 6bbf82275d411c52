// A reward that takes its process with it, at an answer that asks for it.
#include <millrace/plugin.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

using namespace millrace::plugin;

struct crashing : reward {
  explicit crashing(const parameters& p) {
    if (p.boolean("refuse", false))
      p.refuse("refuse", "false");
  }
  judgement judge(const question& asked, std::string_view answer, finish) const override {
    std::puts("chatter on standard output");
    if (answer == "segfault")
      std::raise(SIGSEGV);
    if (answer == "abort")
      std::abort();
    if (answer == "exit")
      std::_Exit(3);
    if (answer == "hang")
      std::this_thread::sleep_for(std::chrono::hours(1));
    if (answer == "throw")
      throw std::runtime_error("no opinion");
    if (answer == "nan")
      return {.reward = std::strtod("nan", nullptr)};
    return {.reward = answer == asked.answer ? 1.0 : 0.0, .correct = answer == asked.answer};
  }
};

MILLRACE_PLUGIN("crashing", "Does as it is told") {
  add.reward<crashing>("crashing", "Crashes when the answer says so");
}
