#include "actors/http_server.hpp"

#include "runtime/clock.hpp"
#include "runtime/error.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace millrace {

namespace {

class descriptor {
public:
  explicit descriptor(int fd = -1) : fd_(fd) {}
  ~descriptor() {
    if (fd_ >= 0)
      ::close(fd_);
  }
  descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  [[nodiscard]] int get() const { return fd_; }

private:
  int fd_;
};

struct connection {
  descriptor socket;
  std::string in, out;
  std::size_t sent = 0;
  double deadline = 0;
  double touched = 0;        ///< when bytes last came or went
  bool last_answer = false; ///< closes once `out` is sent
  bool fresh = true;        ///< nothing was answered yet

  [[nodiscard]] bool answering() const { return !out.empty(); }
};

descriptor listen_on(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  auto where = host + ":" + std::to_string(port);
  if (auto e = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); e != 0)
    throw user_error("monitor.host: found \"" + host + "\", expected an address of this machine ("
                     + gai_strerror(e) + ")");
  std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(found, &::freeaddrinfo);
  int error = 0;
  for (auto* a = found; a != nullptr; a = a->ai_next) {
    descriptor s{::socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    int on = 1;
    ::setsockopt(s.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (s.get() >= 0 && ::bind(s.get(), a->ai_addr, a->ai_addrlen) == 0
        && ::listen(s.get(), 128) == 0)
      return s;
    error = errno;
  }
  throw user_error(error == EADDRINUSE
                     ? "monitor.port: found " + std::to_string(port) + ", which another process on "
                         "this machine uses; choose another, or 0 for any that is free"
                     : "monitor: can't listen on " + where + ": " + std::strerror(error));
}

int port_of(int socket) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&at), &size);
  return ntohs(at.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(at).sin6_port
                                        : reinterpret_cast<sockaddr_in&>(at).sin_port);
}

} // namespace

struct http_server::implementation {
  implementation(const std::string& host, int port, handler h, on_drop d, http_limits l)
    : answer(std::move(h)), dropped(std::move(d)), limits(l), listener(listen_on(host, port)),
      wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), port_number(port_of(listener.get())),
      thread([this] { serve(); }) {}

  ~implementation() {
    stopping = true;
    std::uint64_t one = 1;
    [[maybe_unused]] auto n = ::write(wake.get(), &one, sizeof one);
    thread.join();
  }

  void serve() {
    ::pthread_setname_np(::pthread_self(), "monitor-http");
    while (!stopping) {
      wait();
      auto now = time.now();
      for (auto c = connections.begin(); c != connections.end();) {
        auto at = c++;
        if (now > at->deadline)
          drop(at, at->fresh || at->answering() || !at->in.empty() ? "too slow" : "");
      }
    }
    connections.clear();
  }

  void wait() {
    std::vector<pollfd> polled{{wake.get(), POLLIN, 0},
                               {time.now() < deaf_until ? -1 : listener.get(), POLLIN, 0}};
    std::vector<std::list<connection>::iterator> who;
    for (auto c = connections.begin(); c != connections.end(); ++c) {
      polled.push_back({c->socket.get(), static_cast<short>(c->answering() ? POLLOUT : POLLIN), 0});
      who.push_back(c);
    }
    if (::poll(polled.data(), polled.size(), connections.empty() && polled[1].fd >= 0 ? 1000 : 100) <= 0)
      return;
    for (std::size_t i = 0; i < who.size(); ++i)
      if (polled[i + 2].revents != 0)
        go_on(who[i]);
    if (polled[1].revents != 0)
      accept_some();
  }

  void accept_some() {
    for (int i = 0; i < 64; ++i) {
      descriptor s{::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
      if (s.get() < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
          deaf_until = time.now() + 0.1;
        return;
      }
      if (connections.size() >= limits.connections) {
        auto idlest = std::min_element(
          connections.begin(), connections.end(),
          [](const connection& a, const connection& b) { return a.touched < b.touched; });
        drop(idlest, "too many");
      }
      auto now = time.now();
      connections.push_back({.socket = std::move(s), .deadline = now + limits.request_s, .touched = now});
      count = connections.size();
      go_on(std::prev(connections.end())); // its request is often there already
    }
  }

  void drop(std::list<connection>::iterator c, std::string_view reason) {
    if (!reason.empty() && dropped)
      dropped(reason);
    connections.erase(c);
    count = connections.size();
  }

  void go_on(std::list<connection>::iterator c) {
    if (c->answering() ? !send_more(c) : !read_more(c))
      return;
    // Requests may have come together.
    while (!c->answering()) {
      auto parsed = parse_http_request(c->in);
      if (c->in.empty() || parsed.what == http_parse::state::incomplete) {
        if (c->in.size() > limits.head_bytes)
          drop(c, "garbage");
        return;
      }
      if (parsed.what == http_parse::state::garbage) {
        drop(c, "garbage");
        return;
      }
      c->in.erase(0, parsed.consumed);
      respond(*c, parsed.request);
      if (!send_more(c))
        return;
    }
  }

  void respond(connection& c, const http_request& r) {
    http_response out;
    try {
      if (r.method == "GET" || r.method == "HEAD")
        out = answer(r);
      else
        out = {405, "text/plain", "only GET is answered here\n", {{"Allow", "GET, HEAD"}}};
    } catch (const std::exception& e) {
      out = {500, "text/plain", std::string(e.what()) + "\n"};
    }
    c.last_answer = !r.keep_alive;
    c.out = to_text(out, r.keep_alive, r.method != "HEAD");
    c.sent = 0;
    c.deadline = time.now() + limits.answer_s;
  }

  /// False when the connection is gone.
  bool read_more(std::list<connection>::iterator c) {
    char bytes[4096];
    auto n = ::recv(c->socket.get(), bytes, sizeof bytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
      return true;
    if (n <= 0) {
      drop(c, c->fresh ? "gone" : "");
      return false;
    }
    c->touched = time.now();
    if (c->in.empty() && !c->fresh)
      c->deadline = c->touched + limits.request_s;
    c->in.append(bytes, static_cast<std::size_t>(n));
    return true;
  }

  bool send_more(std::list<connection>::iterator c) {
    while (c->sent < c->out.size()) {
      auto n = ::send(c->socket.get(), c->out.data() + c->sent, c->out.size() - c->sent, MSG_NOSIGNAL);
      if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
      if (n <= 0) {
        drop(c, "gone");
        return false;
      }
      c->sent += static_cast<std::size_t>(n);
      c->touched = time.now();
    }
    if (c->last_answer) {
      drop(c, "");
      return false;
    }
    c->out = {};
    c->fresh = false;
    c->deadline = time.now() + limits.idle_s;
    return true;
  }

  real_clock time;
  handler answer;
  on_drop dropped;
  http_limits limits;
  descriptor listener, wake;
  int port_number;
  double deaf_until = 0; ///< when no descriptor is left, new connections wait in the system
  std::list<connection> connections;
  std::atomic<std::size_t> count{0};
  std::atomic<bool> stopping{false};
  std::thread thread; // last: it uses all of the above
};

http_server::http_server(const std::string& host, int port, handler answer, on_drop dropped,
                         http_limits limits)
  : impl_(std::make_unique<implementation>(host, port, std::move(answer), std::move(dropped), limits)) {
}

http_server::~http_server() = default;

int http_server::port() const { return impl_->port_number; }
std::size_t http_server::open() const { return impl_->count; }

} // namespace millrace
