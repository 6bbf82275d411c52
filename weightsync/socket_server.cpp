#include "weightsync/socket_server.hpp"

#include "runtime/error.hpp"
#include "weightsync/quiet_thread.hpp"
#include "weightsync/stopwatch.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>

namespace millrace::weightsync {

namespace {

constexpr std::size_t most_strangers = 256;
constexpr std::size_t most_requests = 4096; // of one connection, not answered yet
constexpr std::size_t turn_bytes = std::size_t{1} << 20U; // to one receiver before it's another's turn
constexpr std::size_t step_bytes = std::size_t{512} << 10U; // at once

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool on_this_machine(int fd) {
  sockaddr_storage here{};
  sockaddr_storage there{};
  socklen_t size = sizeof here;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &size);
  size = sizeof there;
  ::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &size);
  if (here.ss_family == AF_INET)
    return reinterpret_cast<sockaddr_in&>(here).sin_addr.s_addr
           == reinterpret_cast<sockaddr_in&>(there).sin_addr.s_addr;
  return std::memcmp(&reinterpret_cast<sockaddr_in6&>(here).sin6_addr,
                     &reinterpret_cast<sockaddr_in6&>(there).sin6_addr, sizeof(in6_addr))
         == 0;
}

void prepare(int fd) {
  auto set = [fd](int level, int option, int value) {
    ::setsockopt(fd, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // A receiver's machine may vanish.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000); // ms
  // No distance to fill: what is under way stays in the processor's cache, which halves the cost.
  if (on_this_machine(fd))
    set(SOL_SOCKET, SO_SNDBUF, 256 << 10U);
}

bool add(int events, int fd, std::uint32_t what) {
  epoll_event e{};
  e.events = what;
  e.data.fd = fd;
  return ::epoll_ctl(events, EPOLL_CTL_ADD, fd, &e) == 0;
}

} // namespace

struct socket_server::connection {
  struct reply {
    socket_request to;
    socket_answer head;
    std::size_t sent = 0; // of head and bytes together
  };
  descriptor fd;
  double since = 0;
  bool greeted = false;
  bool writing = false; // wants to be told when there is room
  std::size_t have = 0;
  std::array<std::byte, 4096> in;
  std::deque<reply> queue;
};

socket_server::socket_server(const std::vector<std::string>& hosts, double patience_s)
  : patience_s_(patience_s), events_(::epoll_create1(EPOLL_CLOEXEC)),
    wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  ensure(events_ && wake_, "no descriptors are left for weight sync");
  peer_.label = process_label();
  peer_.server = random_secret();
  ensure(add(events_.get(), wake_.get(), EPOLLIN), "a descriptor can't be watched");
  for (const auto& h : hosts) {
    listeners_.push_back(listen_at(h, peer_.endpoints.emplace_back()));
    ensure(add(events_.get(), listeners_.back().get(), EPOLLIN), "a socket can't be watched");
  }
  thread_ = quiet_thread([this] { run(); });
}

socket_server::~socket_server() {
  stop_ = true;
  std::uint64_t one = 1;
  [[maybe_unused]] auto written = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

secret socket_server::publish(std::span<const std::byte> memory) {
  auto key = random_secret();
  std::lock_guard lock(mutex_);
  memory_[key] = memory;
  return key;
}

void socket_server::withdraw(const secret& region) {
  std::lock_guard lock(mutex_);
  memory_.erase(region);
}

void socket_server::run() {
  std::array<epoll_event, 64> due{};
  while (!stop_) {
    auto n = ::epoll_wait(events_.get(), due.data(), static_cast<int>(due.size()),
                          strangers_ > 0 ? 500 : -1);
    std::vector<int> knocked; // after the others: a newcomer may get the number of one that is closed
    for (int i = 0; i < n; ++i) {
      auto fd = due[static_cast<std::size_t>(i)].data.fd;
      if (std::any_of(listeners_.begin(), listeners_.end(),
                      [&](const auto& l) { return l.get() == fd; })) {
        knocked.push_back(fd);
        continue;
      }
      auto it = connections_.find(fd);
      if (it == connections_.end() || serve(*it->second, due[static_cast<std::size_t>(i)].events))
        continue;
      strangers_ -= it->second->greeted ? 0 : 1;
      connections_.erase(it);
    }
    for (auto listener : knocked)
      admit(listener);
    if (strangers_ > 0)
      turn_away(now_s() - patience_s_);
  }
}

void socket_server::admit(int listener) {
  for (;;) {
    descriptor fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      bool crowded = errno == EMFILE || errno == ENFILE;
      if (crowded && turn_away_oldest())
        continue;
      if (crowded) // whoever holds the descriptors, this thread must not spin
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    if (strangers_ >= most_strangers)
      turn_away_oldest();
    prepare(fd.get());
    auto c = std::make_unique<connection>();
    c->since = now_s();
    c->fd = std::move(fd);
    auto number = c->fd.get();
    if (!add(events_.get(), number, EPOLLIN))
      continue; // no memory to watch it: it is closed, and may come again
    connections_[number] = std::move(c);
    ++strangers_;
  }
}

// False: the connection is to be closed.
bool socket_server::serve(connection& c, std::uint32_t events) {
  if ((events & (EPOLLERR | EPOLLHUP)) != 0)
    return false;
  if ((events & EPOLLIN) != 0 && !receive(c))
    return false;
  return answer(c);
}

bool socket_server::receive(connection& c) {
  for (;;) {
    auto n = ::recv(c.fd.get(), c.in.data() + c.have, c.in.size() - c.have, 0);
    if (n == 0)
      return false;
    if (n < 0)
      return errno == EAGAIN || errno == EINTR;
    c.have += static_cast<std::size_t>(n);
    if (!take_in(c))
      return false;
  }
}

// Reads what has come: the greeting, then requests.
bool socket_server::take_in(connection& c) {
  std::size_t at = 0;
  if (!c.greeted) {
    const socket_greeting expected;
    socket_greeting said;
    std::memcpy(&said, c.in.data(), std::min(c.have, sizeof said));
    if (said.magic != expected.magic)
      return false;
    if (c.have < sizeof said) // the secret is judged whole: a part would tell who guesses it
      return true;
    if (!same(said.server, peer_.server))
      return false;
    c.greeted = true;
    --strangers_;
    at = sizeof said;
  }
  while (c.have - at >= sizeof(socket_request)) {
    auto& r = c.queue.emplace_back();
    std::memcpy(&r.to, c.in.data() + at, sizeof r.to);
    r.head.tag = r.to.tag;
    at += sizeof r.to;
  }
  std::memmove(c.in.data(), c.in.data() + at, c.have - at);
  c.have -= at;
  return c.queue.size() <= most_requests;
}

bool socket_server::answer(connection& c) {
  std::size_t budget = turn_bytes;
  bool full = false;
  while (!c.queue.empty() && !full && budget > 0) {
    auto before = c.queue.front().sent;
    auto* reply = &c.queue.front();
    if (!send_some(c, full))
      return false;
    auto sent = reply->sent - before;
    budget -= std::min(budget, sent);
    if (reply->sent == sizeof reply->head + reply->to.bytes)
      c.queue.pop_front();
  }
  watch(c);
  return true;
}

// Sends the next bytes of the first reply.
bool socket_server::send_some(connection& c, bool& full) {
  auto& r = c.queue.front();
  std::lock_guard lock(mutex_);
  auto region = memory_.find(r.to.region);
  if (region == memory_.end() && r.sent > 0)
    return false; // in the middle of it: the end of the connection tells
  if (region == memory_.end())
    r.head.status = socket_answer::gone;
  else if (r.to.offset > region->second.size() || r.to.bytes > region->second.size() - r.to.offset)
    r.head.status = socket_answer::beyond;
  std::array<iovec, 2> parts{};
  std::size_t count = 0;
  if (r.sent < sizeof r.head)
    parts[count++] = {reinterpret_cast<std::byte*>(&r.head) + r.sent, sizeof r.head - r.sent};
  if (r.head.status == socket_answer::accepted) {
    auto at = r.sent < sizeof r.head ? 0 : r.sent - sizeof r.head;
    auto* from = const_cast<std::byte*>(region->second.data()) + r.to.offset + at;
    parts[count++] = {from, std::min<std::size_t>(r.to.bytes - at, step_bytes)};
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  auto n = ::sendmsg(c.fd.get(), &message, MSG_NOSIGNAL);
  if (n < 0) {
    full = errno == EAGAIN;
    return full || errno == EINTR;
  }
  r.sent += static_cast<std::size_t>(n);
  return r.head.status == socket_answer::accepted || r.sent < sizeof r.head;
}

void socket_server::watch(connection& c) {
  if (c.writing == !c.queue.empty())
    return;
  c.writing = !c.writing;
  epoll_event e{};
  e.events = EPOLLIN | (c.writing ? EPOLLOUT : 0U);
  e.data.fd = c.fd.get();
  ::epoll_ctl(events_.get(), EPOLL_CTL_MOD, c.fd.get(), &e);
}

void socket_server::turn_away(double older_than) {
  std::erase_if(connections_, [&](const auto& entry) {
    bool late = !entry.second->greeted && entry.second->since < older_than;
    strangers_ -= late ? 1 : 0;
    return late;
  });
}

bool socket_server::turn_away_oldest() {
  auto oldest = connections_.end();
  for (auto it = connections_.begin(); it != connections_.end(); ++it)
    if (!it->second->greeted
        && (oldest == connections_.end() || it->second->since < oldest->second->since))
      oldest = it;
  if (oldest == connections_.end())
    return false;
  --strangers_;
  connections_.erase(oldest);
  return true;
}

} // namespace millrace::weightsync
