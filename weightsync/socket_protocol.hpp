#pragma once

// What receivers and a publisher say to each other over a socket. A receiver greets, then asks for
// reads, as many as it likes before the first is answered; answers come in order. Numbers are
// little-endian as all machines that Millrace runs on are. Nothing is encrypted.

#include "weightsync/socket.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace::weightsync {

/// 128 random bits: who knows them may read.
using secret = std::array<std::byte, 16>;
secret random_secret();
/// Takes as long wherever they differ.
bool same(const secret& a, const secret& b);

struct socket_greeting {
  static constexpr std::uint64_t expected = 0x31'53'57'52'4c'4d; // "MLRWS1"
  std::uint64_t magic = expected;
  secret server{};
};
static_assert(sizeof(socket_greeting) == 24);

struct socket_request {
  secret region{};
  std::uint64_t tag = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(socket_request) == 40);

/// Followed by the request's bytes; if it is refused, by the connection's end.
struct socket_answer {
  static constexpr std::uint64_t accepted = 0;
  static constexpr std::uint64_t gone = 1;   ///< no such memory is published (any more)
  static constexpr std::uint64_t beyond = 2; ///< the bytes lie outside of it
  std::uint64_t tag = 0;
  std::uint64_t status = accepted;
};
static_assert(sizeof(socket_answer) == 16);

/// How a publisher is reached: the contents of remote_region::peer.
struct socket_peer {
  std::string label; ///< host and process, for people
  secret server{};
  std::vector<endpoint> endpoints; ///< any of them will do
};
std::string to_text(const socket_peer& peer);
/// Throws user_error when it isn't one.
socket_peer socket_peer_from(const std::string& text);

std::string to_text(const secret& key);
secret secret_from(std::string_view text);

/// "host process 123" of this process.
std::string process_label();

} // namespace millrace::weightsync
