#include "actors/interrupt.hpp"

#include <csignal>

namespace millrace {

namespace {

volatile std::sig_atomic_t noted = 0;

void on_interrupt(int number) {
  noted = noted + 1;
  if (noted > 1) { // once is polite; twice ends it here and now
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

} // namespace

void note_interrupts() {
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
}

int interrupts() {
  return noted;
}

void ignore_broken_pipes() {
  std::signal(SIGPIPE, SIG_IGN);
}

} // namespace millrace
