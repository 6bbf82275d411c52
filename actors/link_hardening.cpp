// Three holes of CAF 0.17, closed from outside: the functions here stand before those of the same name
// in the shared libraries (this file is part of the executable), and call them.

#include "actors/link_hardening.hpp"

#include <caf/io/basp/all.hpp>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <atomic>
#include <dlfcn.h>

namespace millrace {

namespace {

std::atomic<std::size_t> longest{std::size_t{256} << 20U};

template <class Function>
Function next(const char* symbol) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, symbol));
}

} // namespace

void limit_message_bytes(std::size_t bytes) {
  longest = bytes;
}

} // namespace millrace

// CAF asks OpenSSL for a connection's error without having emptied the thread's list of errors before
// the call: one stranger's failed handshake would then cut the next good link that has nothing to read.
extern "C" int SSL_read(SSL* s, void* to, int n) {
  static const auto original = millrace::next<int (*)(SSL*, void*, int)>("SSL_read");
  ERR_clear_error();
  return original(s, to, n);
}

extern "C" int SSL_write(SSL* s, const void* from, int n) {
  static const auto original = millrace::next<int (*)(SSL*, const void*, int)>("SSL_write");
  ERR_clear_error();
  return original(s, from, n);
}

// CAF takes as much memory as a header asks for, up to 4 GiB, from whoever connects.
namespace caf::io::basp {

bool valid(const header& h) {
  static const auto original
    = millrace::next<bool (*)(const header&)>("_ZN3caf2io4basp5validERKNS1_6headerE");
  const auto greets = h.operation == message_type::server_handshake
                      || h.operation == message_type::client_handshake;
  return h.payload_len <= (greets ? std::size_t{65536} : millrace::longest.load()) && original(h);
}

} // namespace caf::io::basp

// CAF reads a payload that isn't there, and looks up senders that it doesn't know, when the first message
// on a connection is not the greeting that it must be. (A member of basp::instance, by its symbol's name.)
extern "C" caf::io::basp::connection_state
_ZN3caf2io4basp8instance6handleEPNS_14execution_unitENS0_17connection_handleERNS1_6headerEPSt6vectorIcSaIcEE(
  caf::io::basp::instance* self, caf::execution_unit* context, caf::io::connection_handle from,
  caf::io::basp::header& h, std::vector<char>* payload) {
  using namespace caf::io;
  static const auto original
    = millrace::next<basp::connection_state (*)(basp::instance*, caf::execution_unit*,
                                                connection_handle, basp::header&,
                                                std::vector<char>*)>(
      "_ZN3caf2io4basp8instance6handleEPNS_14execution_unitENS0_17connection_handleERNS1_6headerE"
      "PSt6vectorIcSaIcEE");
  const auto greets = h.operation == basp::message_type::server_handshake
                      || h.operation == basp::message_type::client_handshake;
  const auto known = static_cast<bool>(self->tbl().lookup_direct(from));
  const auto empty = payload == nullptr || payload->empty();
  if ((!greets && !known) || (empty && h.operation != basp::message_type::heartbeat && h.payload_len > 0)
      || (greets && empty))
    return basp::connection_state::malformed_basp_message;
  return original(self, context, from, h, payload);
}
