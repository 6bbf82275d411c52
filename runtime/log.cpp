#include "runtime/log.hpp"

#include "runtime/error.hpp"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <utility>

namespace millrace::log {
namespace {

spdlog::level::level_enum translated(log_level level) {
  switch (level) {
    case log_level::debug: return spdlog::level::debug;
    case log_level::info: return spdlog::level::info;
    case log_level::warning: return spdlog::level::warn;
    default: return spdlog::level::err;
  }
}

/// Standard error, or whoever has taken its place.
class screen_sink final : public spdlog::sinks::base_sink<std::mutex> {
public:
  void take_over(std::function<void(std::string_view)> screen) {
    std::lock_guard lock(mutex_);
    screen_ = std::move(screen);
  }

protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (screen_)
      screen_({line.data(), line.size()});
    else
      std::fwrite(line.data(), 1, line.size(), stderr);
  }
  void flush_() override { std::fflush(stderr); }

private:
  std::function<void(std::string_view)> screen_;
};

class writer {
public:
  writer() : screen_(std::make_shared<screen_sink>()) {
    screen_->set_pattern("%H:%M:%S %v");
    // Not in spdlog's registry: plugins that use spdlog themselves then can't collide with us.
  }

  void write(log_level level, std::string_view who, std::string_view text) {
    std::string line;
    if (level >= log_level::warning)
      line = level == log_level::error ? "ERROR " : "warning ";
    if (!who.empty())
      line.append("[").append(who).append("] ");
    line.append(text);
    const spdlog::details::log_msg message("", translated(level), line);
    std::lock_guard lock(mutex_);
    screen_->log(message);
    to_file([&] {
      file_->log(message);
      const auto now = std::chrono::steady_clock::now();
      if (level >= log_level::warning || now - flushed_ > std::chrono::seconds(1)) {
        file_->flush();
        flushed_ = now;
      }
    });
  }

  void set_file(const std::filesystem::path& path) {
    std::shared_ptr<spdlog::sinks::sink> opened;
    if (!path.empty()) {
      try {
        opened = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
      } catch (const spdlog::spdlog_ex& e) {
        throw user_error(path.string() + ": can't write the log: " + e.what());
      }
      opened->set_pattern("%Y-%m-%dT%H:%M:%S.%e %v");
    }
    std::lock_guard lock(mutex_);
    file_ = std::move(opened);
    told_ = false;
  }

  void flush() {
    std::lock_guard lock(mutex_);
    screen_->flush();
    to_file([&] { file_->flush(); });
  }

  screen_sink& screen() { return *screen_; }

private:
  /// A full disk must not end whoever has something to say; it is told once, on the screen.
  template <class Work>
  void to_file(Work&& work) {
    try {
      if (file_)
        work();
    } catch (const spdlog::spdlog_ex& e) {
      if (!std::exchange(told_, true))
        screen_->log({"", spdlog::level::warn, std::string("warning [log] ") + e.what()});
    }
  }

  std::mutex mutex_;
  std::shared_ptr<screen_sink> screen_;
  std::shared_ptr<spdlog::sinks::sink> file_;
  std::chrono::steady_clock::time_point flushed_;
  bool told_ = false; ///< that the file takes no more
};

/// Never destroyed: a thread may still speak while the process ends.
writer& the_writer() {
  static auto* w = new writer;
  return *w;
}

std::atomic<log_level> least{log_level::info};

} // namespace

void write(log_level level, std::string_view who, std::string_view text) {
  if (enabled(level))
    the_writer().write(level, who, text);
}

void set_level(log_level level) { least = level; }
bool enabled(log_level level) { return level >= least.load(std::memory_order_relaxed); }
void set_file(const std::filesystem::path& file) { the_writer().set_file(file); }
void set_screen(std::function<void(std::string_view)> screen) {
  the_writer().screen().take_over(std::move(screen));
}
void flush() { the_writer().flush(); }

} // namespace millrace::log
