#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

namespace millrace::weightsync {

/// One end of a line between two processes: whole messages.
class channel {
public:
  explicit channel(int fd) : fd_(fd) {}
  ~channel();
  channel(channel&& other) noexcept;
  channel& operator=(channel&&) = delete;

  /// False when the other end is gone.
  bool send(std::span<const std::byte> message);
  bool send(const std::string& message) { return send(std::as_bytes(std::span(message))); }
  /// The next message; none when the other end is gone or nothing came within the time.
  std::optional<std::vector<std::byte>> receive(double timeout_s);
  /// The same as text.
  std::optional<std::string> receive_text(double timeout_s);

private:
  bool read_all(void* to, std::size_t n, double timeout_s);
  int fd_;
};

/// A forked child that runs a function; the test talks to it and does bad things to it.
class child_process {
public:
  explicit child_process(const std::function<void(channel&)>& run);
  /// Kills it if it still runs.
  ~child_process();
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;

  [[nodiscard]] channel& line() { return line_; }
  void signal(int number) const;
  /// Waits for its end; false when it hasn't come in time, or had an error.
  bool joined(double timeout_s);

private:
  pid_t pid_ = -1;
  channel line_{-1};
};

} // namespace millrace::weightsync
