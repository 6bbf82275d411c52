#include "actors/node_link.hpp"

#include "actors/hub_actor.hpp"
#include "actors/shell.hpp"
#include "actors/silent_strangers.hpp"
#include "actors/stream_config.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "trainer/memory_estimate.hpp"

#include <caf/io/all.hpp>
#include <caf/openssl/all.hpp>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <optional>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <set>
#include <thread>
#include <unistd.h>

namespace millrace {

namespace {

std::string text_of_address(const sockaddr* a) {
  char text[NI_MAXHOST] = "";
  auto size = a->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  getnameinfo(a, static_cast<socklen_t>(size), text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

std::set<std::string> addresses_of(const std::string& host) {
  std::set<std::string> out;
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0)
    return out;
  for (auto* a = found; a != nullptr; a = a->ai_next)
    if (a->ai_family == AF_INET || a->ai_family == AF_INET6)
      out.insert(text_of_address(a->ai_addr));
  freeaddrinfo(found);
  return out;
}

std::set<std::string> own_addresses() {
  std::set<std::string> out{"::1"};
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0)
    return out;
  for (auto* a = found; a != nullptr; a = a->ifa_next)
    if (a->ifa_addr != nullptr
        && (a->ifa_addr->sa_family == AF_INET || a->ifa_addr->sa_family == AF_INET6))
      out.insert(text_of_address(a->ifa_addr));
  freeifaddrs(found);
  return out;
}

/// CAF would start with files that are no certificates, and then understand nobody.
void check_certificates(const tls_settings& tls) {
  auto fail = [](const char* option, const std::string& file, const char* why) {
    throw user_error(std::string("cluster.tls.") + option + ": \"" + file + "\" " + why
                     + "; `millrace certs` makes what is needed");
  };
  for (const auto& [option, file] : {std::pair{"certificate", &tls.certificate},
                                     std::pair{"key", &tls.key}, std::pair{"ca", &tls.ca}})
    if (access(file->c_str(), R_OK) != 0)
      fail(option, *file, "can't be read here");
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_method()),
                                                                  &SSL_CTX_free);
  auto* c = context.get();
  if (SSL_CTX_use_certificate_chain_file(c, tls.certificate.c_str()) != 1)
    fail("certificate", tls.certificate, "holds no certificate (PEM)");
  if (SSL_CTX_use_PrivateKey_file(c, tls.key.c_str(), SSL_FILETYPE_PEM) != 1)
    fail("key", tls.key, "holds no key, or not that of cluster.tls.certificate");
  if (SSL_CTX_load_verify_locations(c, tls.ca.c_str(), nullptr) != 1)
    fail("ca", tls.ca, "holds no certificate (PEM)");
  if (X509_cmp_time(X509_get0_notAfter(SSL_CTX_get0_certificate(c)), nullptr) < 0)
    fail("certificate", tls.certificate, "has expired");
  ERR_clear_error();
}

/// The settings of CAF for nodes.
class node_config : public stream_config {
public:
  explicit node_config(const cluster_settings& c) {
    add_cluster_message_types(*this);
    set("middleman.heartbeat-interval", to_timespan(c.heartbeat_s));
    set("middleman.connection-timeout", to_timespan(c.lost_after_s));
    load<caf::io::middleman>();
    if (c.tls.ca.empty())
      return;
    check_certificates(c.tls);
    openssl_certificate = c.tls.certificate;
    openssl_key = c.tls.key;
    openssl_cafile = c.tls.ca;
    load<caf::openssl::manager>();
  }

private:
  static caf::timespan to_timespan(double s) {
    return caf::timespan{static_cast<std::int64_t>(s * 1e9)};
  }
};

} // namespace

host_facts this_host() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return {name, static_cast<std::int32_t>(std::thread::hardware_concurrency()),
          trainer::physical_memory_bytes()};
}

void add_cluster_message_types(caf::actor_system_config& config) {
  config.add_message_type<node_hello>("millrace::node_hello")
    .add_message_type<node_welcome>("millrace::node_welcome")
    .add_message_type<hub_opening>("millrace::hub_opening");
}

struct linked_system::parts {
  explicit parts(const settings& s)
    : tls(!s.cluster.tls.ca.empty()), config(s.cluster), system(config) {
  }
  bool tls;
  node_config config;
  caf::actor_system system;
  std::optional<silent_strangers> strangers; ///< at the port that it listens on
};

linked_system::linked_system(const settings& s) : parts_(std::make_unique<parts>(s)) {
}

linked_system::~linked_system() = default;

caf::actor_system& linked_system::system() {
  return parts_->system;
}

void linked_system::listen(const caf::actor& actor, const node_settings& at) {
  // One address where the name is one of this machine's; behind a proxy (a service's name) all.
  const char* in = nullptr;
  std::string address;
  auto own = own_addresses();
  for (const auto& a : addresses_of(at.host))
    if (own.contains(a) || a.starts_with("127.")) {
      address = a;
      in = address.c_str();
      break;
    }
  auto port = static_cast<std::uint16_t>(at.port);
  auto bound = parts_->tls ? caf::openssl::publish(actor, port, in, true)
                           : caf::io::publish(actor, port, in, true);
  if (!bound)
    throw user_error("node " + at.name + ": can't listen on " + at.host + ":"
                     + std::to_string(at.port)
                     + "; is the port taken (perhaps by this cluster, already up)? Set another "
                       "cluster.nodes[].port, or stop what holds it (" 
                     + text_of(bound.error(), parts_->system) + ")");
  parts_->strangers.emplace(*bound, 5, [](int closed) {
    log::warning("cluster", "closed " + std::to_string(closed)
                              + " connections whose other end said nothing");
  });
}

caf::actor linked_system::connect(const node_settings& to, std::string& why) {
  auto port = static_cast<std::uint16_t>(to.port);
  auto& system = parts_->system;
  auto found = parts_->tls ? caf::openssl::remote_actor(system, to.host, port)
                           : caf::io::remote_actor(system, to.host, port);
  if (found)
    return *found;
  why = text_of(found.error(), system);
  return nullptr;
}

std::string build_identity() {
  stream_config config;
  add_cluster_message_types(config);
  std::set<std::string> names;
  for (const auto& [name, factory] : config.value_factories_by_name)
    names.insert(name);
  std::uint64_t hash = 0xCBF29CE484222325; // FNV-1a: the same everywhere
  for (const auto& name : names)
    for (char c : name + "\n")
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  char text[32];
  std::snprintf(text, sizeof text, "%08llx", static_cast<unsigned long long>(hash >> 32U));
  return std::string("millrace " MILLRACE_VERSION ", messages ") + text;
}

bool is_this_host(const std::string& host) {
  if (host == this_host().name || host == "localhost" || host.starts_with("127."))
    return true;
  auto own = own_addresses();
  for (const auto& a : addresses_of(host))
    if (own.contains(a))
      return true;
  return false;
}

} // namespace millrace
