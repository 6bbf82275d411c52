#include "weightsync/socket_protocol.hpp"

#include "runtime/error.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

namespace millrace::weightsync {

namespace {

[[noreturn]] void not_a_peer() {
  throw user_error("weight_sync: the publisher's address can't be read; do trainer and generators run "
                   "the same Millrace with the same weight_sync.transport?");
}

} // namespace

secret random_secret() {
  secret s;
  for (std::size_t have = 0; have < s.size();) {
    auto n = ::getrandom(s.data() + have, s.size() - have, 0);
    if (n > 0)
      have += static_cast<std::size_t>(n);
    else
      ensure(errno == EINTR, "the system has no random numbers");
  }
  return s;
}

bool same(const secret& a, const secret& b) {
  std::byte different{0};
  for (std::size_t i = 0; i < a.size(); ++i)
    different |= a[i] ^ b[i];
  return different == std::byte{0};
}

std::string to_text(const secret& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

secret secret_from(std::string_view text) {
  secret s;
  if (text.size() != s.size())
    not_a_peer();
  std::memcpy(s.data(), text.data(), s.size());
  return s;
}

// label, new line, secret, then "host port" lines
std::string to_text(const socket_peer& peer) {
  auto text = peer.label + '\n' + to_text(peer.server);
  for (const auto& e : peer.endpoints)
    text += e.host + ' ' + std::to_string(e.port) + '\n';
  return text;
}

socket_peer socket_peer_from(const std::string& text) {
  socket_peer peer;
  auto at = text.find('\n');
  if (at == std::string::npos || text.size() < at + 1 + peer.server.size())
    not_a_peer();
  peer.label = text.substr(0, at);
  peer.server = secret_from(std::string_view(text).substr(at + 1, peer.server.size()));
  for (at += 1 + peer.server.size(); at < text.size();) {
    auto space = text.find(' ', at);
    auto end = text.find('\n', at);
    if (space == std::string::npos || end == std::string::npos || end < space)
      not_a_peer();
    endpoint e{text.substr(at, space - at), 0};
    if (std::from_chars(text.data() + space + 1, text.data() + end, e.port).ptr != text.data() + end)
      not_a_peer();
    peer.endpoints.push_back(std::move(e));
    at = end + 1;
  }
  return peer;
}

std::string process_label() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return std::string(host.data()) + " process " + std::to_string(::getpid());
}

} // namespace millrace::weightsync
