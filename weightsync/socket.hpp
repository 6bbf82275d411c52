#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millrace::weightsync {

/// A file descriptor that is closed with its owner.
class descriptor {
public:
  descriptor() = default;
  explicit descriptor(int fd) : fd_(fd) {}
  ~descriptor() { reset(); }
  descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

private:
  int fd_ = -1;
};

/// Where a socket listens, as others reach it.
struct endpoint {
  std::string host; ///< an address or a name
  std::uint16_t port = 0;
};

/// A non-blocking TCP socket that listens at `host` (a name or an address) on a port that is free,
/// which is put into `at`. Throws user_error.
descriptor listen_at(const std::string& host, endpoint& at);

/// A non-blocking connection; throws std::system_error or user_error when there is none within the
/// time.
descriptor connect_to(const endpoint& to, std::chrono::milliseconds patience);

/// The addresses of a network device ("lo", "eth0"). Throws user_error when it has none.
std::vector<std::string> addresses_of_device(const std::string& device);

} // namespace millrace::weightsync
