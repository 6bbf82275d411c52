#include "actors/http_client.hpp"

#include "runtime/clock.hpp"
#include "runtime/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <vector>

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace millrace {

namespace fs = std::filesystem;

namespace {

/// What a run wrote about itself; none when it is over, or is no run.
std::optional<run_address> announced(const fs::path& directory) {
  std::ifstream in(directory / "monitor.json");
  auto j = nlohmann::json::parse(in, nullptr, false);
  if (!j.is_object() || !j.contains("url"))
    return std::nullopt;
  return run_address{j.value("url", ""), j.value("token", "")};
}

/// A killed process leaves its file behind.
bool alive(const fs::path& directory) {
  std::ifstream in(directory / "monitor.json");
  auto j = nlohmann::json::parse(in, nullptr, false);
  return j.is_object() && j.contains("pid") && j["pid"].is_number_integer()
         && (::kill(j["pid"].get<pid_t>(), 0) == 0 || errno == EPERM);
}

run_address newest_run() {
  fs::path best;
  fs::file_time_type when{};
  std::error_code ignored;
  for (auto at = fs::directory_iterator("runs", ignored);
       !ignored && at != fs::directory_iterator(); at.increment(ignored)) {
    auto file = at->path() / "monitor.json";
    if (fs::exists(file, ignored) && alive(at->path())
        && (best.empty() || fs::last_write_time(file, ignored) > when)) {
      best = at->path();
      when = fs::last_write_time(file, ignored);
    }
  }
  if (best.empty())
    throw user_error("no run is going on under runs/ here; name its folder, or its URL "
                     "(http://HOST:PORT)");
  return *announced(best);
}

struct socket_guard {
  int fd;
  ~socket_guard() { ::close(fd); }
};

/// Waits until the socket can be read or written; false at the deadline.
bool ready(int fd, short what, const real_clock& time, double deadline) {
  pollfd p{fd, what, 0};
  auto left = deadline - time.now();
  return left > 0 && ::poll(&p, 1, static_cast<int>(left * 1000) + 1) > 0;
}

int connect_to(const std::string& host, const std::string& port, const real_clock& time,
               double deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0)
    return -1;
  std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(found, &::freeaddrinfo);
  for (auto* a = found; a != nullptr; a = a->ai_next) {
    auto fd = ::socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int error = 0;
    socklen_t size = sizeof error;
    if (fd >= 0
        && (::connect(fd, a->ai_addr, a->ai_addrlen) == 0
            || (errno == EINPROGRESS && ready(fd, POLLOUT, time, deadline)
                && ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0)))
      return fd;
    if (fd >= 0)
      ::close(fd);
  }
  return -1;
}

} // namespace

run_address find_run(const std::string& what) {
  if (what.empty())
    return newest_run();
  if (what.starts_with("http://"))
    return {what.ends_with('/') ? what : what + "/", {}};
  if (what.starts_with("https://"))
    throw user_error(what + ": monitors speak plain http:// (put a proxy or ssh -L before them)");
  std::error_code ignored;
  if (!fs::is_directory(what, ignored))
    throw user_error(what + ": is no folder of a run, and no URL (http://HOST:PORT)");
  auto out = announced(what);
  if (!out || !alive(what))
    throw user_error(what + ": no run is going on there (it has ended, or monitor.enabled is off)");
  return *out;
}

http_answer http_get(const run_address& run, const std::string& path, double timeout_s) {
  auto rest = run.url.substr(std::strlen("http://"));
  rest = rest.substr(0, rest.find('/'));
  auto colon = rest.rfind(':');
  if (colon != std::string::npos && rest.find(']', colon) != std::string::npos)
    colon = std::string::npos;
  auto host = rest.substr(0, colon);
  auto port = colon == std::string::npos ? "80" : rest.substr(colon + 1);
  auto address = host.starts_with('[') ? host.substr(1, host.size() - 2) : host;
  real_clock time;
  socket_guard s{connect_to(address, port, time, timeout_s)};
  if (s.fd < 0)
    throw user_error(run.url + ": nobody answers");
  auto request = "GET /" + path + " HTTP/1.1\r\nHost: " + rest + "\r\nConnection: close\r\n"
                 + (run.token.empty() ? "" : "Authorization: Bearer " + run.token + "\r\n") + "\r\n";
  if (::send(s.fd, request.data(), request.size(), MSG_NOSIGNAL)
      != static_cast<ssize_t>(request.size()))
    throw user_error(run.url + ": the connection was closed");
  std::string all;
  for (;;) {
    if (!ready(s.fd, POLLIN, time, timeout_s))
      throw user_error(run.url + ": no answer within " + std::to_string(static_cast<int>(timeout_s))
                       + " s");
    char bytes[65536];
    auto n = ::recv(s.fd, bytes, sizeof bytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
      continue;
    if (n <= 0)
      break;
    all.append(bytes, static_cast<std::size_t>(n));
  }
  auto end = all.find("\r\n\r\n");
  if (!all.starts_with("HTTP/1.") || end == std::string::npos)
    throw user_error(run.url + ": is no monitor of Millrace");
  return {std::atoi(all.c_str() + std::strlen("HTTP/1.1 ")), all.substr(end + 4)};
}

} // namespace millrace
