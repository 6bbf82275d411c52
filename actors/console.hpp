#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <string_view>

namespace millrace {

/// Standard output as people watch it: lines that scroll, and below them, on a terminal, one bar
/// that shows how far the present stage is. Where output is not a terminal the bar becomes a plain
/// line every tenth of the way, and every 20 s. Thread-safe; log lines go through here too, so
/// nothing is torn.
class console {
public:
  /// `quiet`: shows nothing but warnings and errors.
  explicit console(bool quiet = false);
  ~console();
  console(const console&) = delete;
  console& operator=(const console&) = delete;

  void line(std::string_view text);
  /// `done` in 0..1. `text` stands behind the bar.
  void progress(std::string_view stage, double done, std::string_view text);
  /// Removes the bar.
  void end_progress();

private:
  void erase_bar();
  void draw_bar();

  std::mutex mutex_;
  bool quiet_;
  bool terminal_;
  std::string bar_;
  std::string stage_;
  int tenths_ = -1;
  std::chrono::steady_clock::time_point shown_; ///< the last plain line of progress
};

} // namespace millrace
