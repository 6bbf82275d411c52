#include "weightsync/socket_reader.hpp"

#include "runtime/error.hpp"
#include "weightsync/stopwatch.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <system_error>
#include <utility>

namespace millrace::weightsync {

namespace {

// A machine that is there answers in much less; pulls have deadlines of their own.
constexpr std::chrono::milliseconds connect_patience{3000};

std::string error_text(int error) { return std::generic_category().message(error); }

} // namespace

struct socket_reader::connection {
  struct read {
    std::uint64_t tag = 0;
    std::span<std::byte> to;
  };
  std::string label;
  descriptor fd;
  std::deque<read> owed; // in the order of the answers
  std::vector<std::byte> unsent;
  socket_answer head;
  std::size_t got = 0; // of the first answer's head and bytes together

  [[nodiscard]] bool ended() const {
    std::byte b{};
    auto n = ::recv(fd.get(), &b, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
  }
};

socket_reader::socket_reader() = default;
socket_reader::~socket_reader() = default;

auto socket_reader::connect(const remote_region& region) -> connection& {
  auto& slot = peers_[region.peer];
  // Nothing is owed, so nothing told us if it ended meanwhile.
  if (slot && slot->owed.empty() && slot->ended())
    slot.reset();
  if (slot)
    return *slot;
  slot = std::make_unique<connection>();
  auto peer = socket_peer_from(region.peer);
  slot->label = peer.label;
  std::string why = "it listens nowhere";
  for (const auto& e : peer.endpoints)
    try {
      slot->fd = connect_to(e, connect_patience);
      break;
    } catch (const std::exception& error) {
      why = e.host + " port " + std::to_string(e.port) + ": " + error.what();
    }
  if (!slot->fd)
    throw std::runtime_error(slot->label + ": no connection to " + why);
  socket_greeting hello;
  hello.server = peer.server;
  auto bytes = std::as_bytes(std::span(&hello, 1));
  slot->unsent.assign(bytes.begin(), bytes.end());
  return *slot;
}

void socket_reader::post(std::uint64_t tag, const read_request& r) {
  if (r.from->transport != "tcp")
    throw user_error("weight_sync: the publisher uses the transport \"" + r.from->transport
                     + "\", but this receiver \"tcp\"");
  if (r.memory != memory_kind::host)
    throw user_error("weight_sync.transport \"tcp\" moves host memory only; GPU memory needs \"ucx\"");
  if (auto known = unreachable_.find(r.from->peer); known != unreachable_.end()) {
    done_.push_back({tag, known->second, true});
    return;
  }
  connection* c = nullptr;
  try {
    c = &connect(*r.from);
  } catch (const user_error&) {
    peers_.erase(r.from->peer);
    throw;
  } catch (const std::runtime_error& e) {
    peers_.erase(r.from->peer);
    unreachable_[r.from->peer] = e.what();
    done_.push_back({tag, e.what(), true});
    return;
  }
  socket_request request{secret_from(r.from->key), tag, r.offset, r.to.size()};
  auto bytes = std::as_bytes(std::span(&request, 1));
  c->unsent.insert(c->unsent.end(), bytes.begin(), bytes.end());
  c->owed.push_back({tag, r.to});
  send(*c); // what goes wrong shows when the answer is awaited
}

bool socket_reader::send(connection& c) {
  if (c.unsent.empty())
    return false;
  auto n = ::send(c.fd.get(), c.unsent.data(), c.unsent.size(), MSG_NOSIGNAL);
  if (n <= 0)
    return false;
  c.unsent.erase(c.unsent.begin(), c.unsent.begin() + n);
  return true;
}

// Takes bytes of the first answer; false when there are none yet.
bool socket_reader::receive(connection& c) {
  if (c.owed.empty())
    return false;
  auto& first = c.owed.front();
  std::array<iovec, 2> parts{};
  std::size_t count = 0;
  if (c.got < sizeof c.head)
    parts[count++] = {reinterpret_cast<std::byte*>(&c.head) + c.got, sizeof c.head - c.got};
  auto at = c.got < sizeof c.head ? 0 : c.got - sizeof c.head;
  parts[count++] = {first.to.data() + at, first.to.size() - at};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  auto n = ::recvmsg(c.fd.get(), &message, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return false;
  if (n <= 0) {
    fail(c, n == 0 ? "the connection ended" : error_text(errno), true);
    return true;
  }
  c.got += static_cast<std::size_t>(n);
  if (c.got < sizeof c.head)
    return true;
  if (c.head.tag != first.tag) {
    fail(c, "an answer to another question", true);
  } else if (c.head.status != socket_answer::accepted) {
    // No fault of the peer's, which ends the connection now: the reads may be asked for again.
    fail(c, c.head.status == socket_answer::gone ? "the memory isn't published any more"
                                                 : "a read beyond the published memory",
         false);
  } else if (c.got == sizeof c.head + first.to.size()) {
    done_.push_back({first.tag, {}, false});
    c.owed.pop_front();
    c.got = 0;
  }
  return true;
}

// All its reads have failed; the next post connects anew.
void socket_reader::fail(connection& c, const std::string& why, bool lost) {
  for (const auto& r : c.owed)
    done_.push_back({r.tag, c.label + ": " + why, lost});
  c.owed.clear();
  c.unsent.clear();
  c.fd.reset();
}

bool socket_reader::exchange(connection& c) {
  auto sent = send(c);
  return receive(c) || sent;
}

std::vector<completion> socket_reader::poll(double wait_s) {
  stopwatch waited;
  while (done_.empty()) {
    bool moved = false;
    auto n = peers_.size();
    for (std::size_t i = 0; i < n && done_.empty(); ++i) {
      auto next = static_cast<std::ptrdiff_t>((turn_ + i) % n);
      moved |= exchange(*std::next(peers_.begin(), next)->second);
    }
    ++turn_;
    if (moved || !done_.empty())
      continue;
    auto left = wait_s - waited.seconds();
    if (left <= 0)
      break;
    wait(left);
  }
  std::erase_if(peers_, [](const auto& p) { return !p.second->fd; });
  unreachable_.clear();
  return std::exchange(done_, {});
}

void socket_reader::wait(double seconds) {
  std::vector<pollfd> fds;
  for (const auto& [id, c] : peers_)
    if (!c->owed.empty())
      fds.push_back({c->fd.get(), static_cast<short>(POLLIN | (c->unsent.empty() ? 0 : POLLOUT)), 0});
  ::poll(fds.data(), fds.size(), static_cast<int>(std::ceil(std::min(seconds, 1e6) * 1e3)));
}

void socket_reader::cancel() {
  std::erase_if(peers_, [](const auto& p) { return !p.second->owed.empty() || !p.second->fd; });
  unreachable_.clear();
  done_.clear();
}

} // namespace millrace::weightsync
