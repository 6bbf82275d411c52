#include "child_process.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <thread>
#include <utility>

namespace millrace::weightsync {

channel::channel(channel&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

channel::~channel() {
  if (fd_ >= 0)
    ::close(fd_);
}

bool channel::send(std::span<const std::byte> message) {
  std::uint64_t length = message.size();
  auto write_all = [&](const void* from, std::size_t n) {
    const auto* at = static_cast<const char*>(from);
    while (n > 0) {
      auto k = ::send(fd_, at, n, MSG_NOSIGNAL);
      if (k <= 0)
        return false;
      at += k;
      n -= static_cast<std::size_t>(k);
    }
    return true;
  };
  return write_all(&length, sizeof(length)) && write_all(message.data(), message.size());
}

bool channel::read_all(void* to, std::size_t n, double timeout_s) {
  auto* at = static_cast<char*>(to);
  auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  while (n > 0) {
    auto left = std::chrono::duration<double>(end - std::chrono::steady_clock::now()).count();
    pollfd p{fd_, POLLIN, 0};
    if (left <= 0 || ::poll(&p, 1, static_cast<int>(left * 1000) + 1) <= 0)
      return false;
    auto k = ::read(fd_, at, n);
    if (k <= 0)
      return false;
    at += k;
    n -= static_cast<std::size_t>(k);
  }
  return true;
}

std::optional<std::vector<std::byte>> channel::receive(double timeout_s) {
  std::uint64_t length = 0;
  if (!read_all(&length, sizeof(length), timeout_s))
    return std::nullopt;
  std::vector<std::byte> message(length);
  if (!read_all(message.data(), length, timeout_s))
    return std::nullopt;
  return message;
}

std::optional<std::string> channel::receive_text(double timeout_s) {
  auto message = receive(timeout_s);
  if (!message)
    return std::nullopt;
  return std::string(reinterpret_cast<const char*>(message->data()), message->size());
}

child_process::child_process(const std::function<void(channel&)>& run) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    throw std::runtime_error("socketpair failed");
  std::fflush(nullptr);
  pid_ = ::fork();
  if (pid_ < 0)
    throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    // The other children's lines must end with their owners, not live on here.
    for (int fd = 3; fd < 256; ++fd)
      if (fd != fds[1])
        ::close(fd);
    channel line(fds[1]);
    int status = 0;
    try {
      run(line);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "child process: %s\n", e.what());
      status = 1;
    }
    std::_Exit(status);
  }
  ::close(fds[1]);
  line_.~channel();
  new (&line_) channel(fds[0]);
}

void child_process::signal(int number) const {
  if (pid_ > 0)
    ::kill(pid_, number);
}

bool child_process::joined(double timeout_s) {
  for (int i = 0; i < timeout_s * 100; ++i) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

child_process::~child_process() {
  if (pid_ <= 0)
    return;
  ::kill(pid_, SIGKILL);
  ::kill(pid_, SIGCONT);
  ::waitpid(pid_, nullptr, 0);
}

} // namespace millrace::weightsync
