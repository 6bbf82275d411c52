#include "actors/console.hpp"

#include "runtime/log.hpp"

#include <algorithm>
#include <cstdio>
#include <unistd.h>

namespace millrace {

console::console(bool quiet)
  : quiet_(quiet), terminal_(!quiet && isatty(STDOUT_FILENO) == 1) {
  if (!quiet)
    log::set_screen([this](std::string_view text) { line(text); });
}

console::~console() {
  end_progress();
  if (!quiet_)
    log::set_screen({});
}

void console::line(std::string_view text) {
  if (quiet_)
    return;
  std::lock_guard guard(mutex_);
  erase_bar();
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (text.empty() || text.back() != '\n')
    std::fputc('\n', stdout);
  draw_bar();
  std::fflush(stdout);
}

void console::progress(std::string_view stage, double done, std::string_view text) {
  if (quiet_)
    return;
  std::lock_guard guard(mutex_);
  done = std::clamp(done, 0.0, 1.0);
  auto percent = std::to_string(static_cast<int>(done * 100)) + "%";
  if (!terminal_) {
    const auto tenths = static_cast<int>(done * 10);
    const auto now = std::chrono::steady_clock::now();
    if (stage == stage_ && tenths <= tenths_ && now < shown_ + std::chrono::seconds(20))
      return;
    stage_ = stage;
    tenths_ = tenths;
    shown_ = now;
    std::printf("%.*s %s  %.*s\n", static_cast<int>(stage.size()), stage.data(), percent.c_str(),
                static_cast<int>(text.size()), text.data());
    std::fflush(stdout);
    return;
  }
  constexpr int width = 28;
  auto full = static_cast<int>(done * width);
  std::string bar;
  for (int i = 0; i < width; ++i)
    bar += i < full ? "█" : "░";
  erase_bar();
  bar_ = std::string(stage) + " " + bar + " " + percent + "  " + std::string(text);
  draw_bar();
  std::fflush(stdout);
}

void console::end_progress() {
  std::lock_guard guard(mutex_);
  erase_bar();
  bar_.clear();
  std::fflush(stdout);
}

void console::erase_bar() {
  if (terminal_ && !bar_.empty())
    std::fputs("\r\033[2K", stdout);
}

void console::draw_bar() {
  if (terminal_ && !bar_.empty())
    std::fputs(bar_.c_str(), stdout);
}

} // namespace millrace
