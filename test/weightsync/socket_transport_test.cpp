// Sockets as a transport: what arrives, what is refused, and what strangers leave behind.
#include "fixtures.hpp"
#include "listening_ports.hpp"

#include "weightsync/layered_transport.hpp"
#include "weightsync/publisher.hpp"
#include "weightsync/pull.hpp"
#include "weightsync/socket_protocol.hpp"
#include "weightsync/socket_transport.hpp"
#include "weightsync/stopwatch.hpp"

#include "runtime/error.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

using namespace millrace;
using namespace millrace::weightsync;
using test::comes_true;

namespace {

void fill(std::span<std::byte> memory, std::mt19937_64& random) {
  for (auto& b : memory)
    b = static_cast<std::byte>(random());
}

// All completions of `n` reads, by tag.
std::map<std::uint64_t, completion> finish(reader& r, std::size_t n) {
  std::map<std::uint64_t, completion> all;
  stopwatch watch;
  while (all.size() < n && watch.seconds() < 10)
    for (auto& c : r.poll(0.1))
      all[c.tag] = c;
  REQUIRE(all.size() == n);
  return all;
}

endpoint address_of(const exposed_memory& e) { return socket_peer_from(e.region().peer).endpoints[0]; }

} // namespace

TEST_CASE("reads of any size and order bring the right bytes") {
  socket_transport carrier;
  auto a = carrier.expose(3'000'001, memory_kind::host);
  auto b = carrier.expose(4097, memory_kind::host);
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    fill(a->memory().subspan(random() % 1000, 100'000), random);
    fill(b->memory(), random);
    auto reader = carrier.make_reader();
    std::vector<std::vector<std::byte>> targets;
    std::vector<std::pair<const exposed_memory*, std::uint64_t>> asked;
    std::size_t n = 1 + random() % 40;
    for (std::size_t i = 0; i < n; ++i) {
      const auto& from = random() % 3 == 0 ? *b : *a;
      auto size = from.memory().size();
      std::uint64_t offset = random() % (size + 1);
      std::size_t length = random() % 4 == 0 ? random() % 3 : random() % (size - offset + 1);
      length = std::min<std::size_t>(length, size - offset);
      asked.emplace_back(&from, offset);
      targets.emplace_back(length);
    }
    for (std::size_t i = 0; i < n; ++i)
      reader->post(i, {&asked[i].first->region(), asked[i].second, targets[i]});
    auto done = finish(*reader, n);
    for (std::size_t i = 0; i < n; ++i) {
      REQUIRE(done[i].error.empty());
      auto from = asked[i].first->memory().subspan(asked[i].second);
      REQUIRE(std::equal(targets[i].begin(), targets[i].end(), from.begin()));
    }
  }
}

TEST_CASE("what can't be read is refused, and nobody is thought lost for it") {
  socket_transport carrier;
  auto memory = carrier.expose(100, memory_kind::host);
  auto region = memory->region();
  auto reader = carrier.make_reader();
  std::vector<std::byte> to(60);
  for (std::uint64_t offset : {std::uint64_t{41}, std::uint64_t{101}, ~std::uint64_t{0}}) {
    reader->post(1, {&region, offset, to});
    auto done = finish(*reader, 1);
    REQUIRE(done[1].error.find("beyond") != std::string::npos);
    REQUIRE_FALSE(done[1].peer_lost);
  }
  reader->post(2, {&region, 40, to});
  REQUIRE(finish(*reader, 1)[2].error.empty());
  auto other = carrier.expose(10, memory_kind::host); // so that the server lives on
  memory.reset();
  reader->post(3, {&region, 0, to});
  auto done = finish(*reader, 1);
  REQUIRE(done[3].error.find("isn't published any more") != std::string::npos);
  REQUIRE_FALSE(done[3].peer_lost);
  REQUIRE_THROWS_AS(carrier.expose(10, memory_kind::cuda), user_error);
  region.transport = "ucx";
  REQUIRE_THROWS_AS(reader->post(4, {&region, 0, to}), user_error);
}

TEST_CASE("a server that is gone is a lost peer, and another one at its place isn't it") {
  auto carrier = std::make_unique<socket_transport>();
  auto memory = carrier->expose(1000, memory_kind::host);
  auto region = memory->region();
  socket_transport elsewhere;
  auto reader = elsewhere.make_reader();
  std::vector<std::byte> to(1000);
  reader->post(1, {&region, 0, to});
  REQUIRE(finish(*reader, 1)[1].error.empty());
  memory.reset();
  carrier.reset();
  reader->post(2, {&region, 0, to});
  auto done = finish(*reader, 1);
  REQUIRE(done[2].peer_lost);
  REQUIRE(done[2].error.find("process") != std::string::npos);
}

TEST_CASE("a host that answers nothing costs a window of reads one time-out, not one each") {
  // A queue that is full: the kernel answers no further knock, like a host that has vanished.
  const int full = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  REQUIRE(::bind(full, reinterpret_cast<sockaddr*>(&at), size) == 0);
  REQUIRE(::listen(full, 0) == 0);
  REQUIRE(::getsockname(full, reinterpret_cast<sockaddr*>(&at), &size) == 0);
  std::vector<int> knocking;
  for (int i = 0; i < 4; ++i) {
    knocking.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    ::connect(knocking.back(), reinterpret_cast<sockaddr*>(&at), size);
  }
  socket_transport carrier;
  auto memory = carrier.expose(1000, memory_kind::host);
  auto region = memory->region();
  auto peer = socket_peer_from(region.peer);
  peer.endpoints = {{"127.0.0.1", ntohs(at.sin_port)}};
  region.peer = to_text(peer);
  auto reader = carrier.make_reader();
  std::vector<std::byte> to(400);
  stopwatch watch;
  for (std::uint64_t i = 0; i < 4; ++i)
    reader->post(i, {&region, 100 * i, std::span(to).subspan(100 * i, 100)});
  for (auto& [tag, done] : finish(*reader, 4)) {
    REQUIRE(done.peer_lost);
    REQUIRE(done.error.find("127.0.0.1") != std::string::npos);
  }
  REQUIRE(watch.seconds() > 1); // it was waited for
  REQUIRE(watch.seconds() < 5);
  for (auto fd : knocking)
    ::close(fd);
  ::close(full);
  // The next window asks anew.
  auto there = memory->region();
  reader->post(9, {&there, 0, to});
  REQUIRE(finish(*reader, 1)[9].error.empty());
}

TEST_CASE("nothing is written to a target after cancel()") {
  socket_transport carrier;
  auto memory = carrier.expose(8U << 20U, memory_kind::host);
  std::memset(memory->memory().data(), 1, memory->memory().size());
  auto reader = carrier.make_reader();
  std::vector<std::byte> to(8U << 20U);
  for (int i = 0; i < 20; ++i) {
    for (std::size_t k = 0; k < 8; ++k)
      reader->post(k, {&memory->region(), k << 20U, std::span(to).subspan(k << 20U, 1U << 20U)});
    if (i % 2 == 0)
      reader->poll(0.001);
    reader->cancel();
    std::fill(to.begin(), to.end(), std::byte{2});
    std::vector<std::byte> other(1000);
    reader->post(99, {&memory->region(), 0, other});
    REQUIRE(finish(*reader, 1)[99].error.empty());
    REQUIRE(std::all_of(to.begin(), to.end(), [](auto b) { return b == std::byte{2}; }));
  }
}

TEST_CASE("strangers are cut and leave nothing behind, while receivers go on reading") {
  socket_options how;
  how.greeting_s = 0.3;
  socket_transport carrier(how);
  auto memory = carrier.expose(1U << 20U, memory_kind::host);
  auto at = address_of(*memory);
  auto reader = carrier.make_reader();
  std::vector<std::byte> to(1U << 20U);
  auto reads = [&](std::uint64_t tag) {
    reader->post(tag, {&memory->region(), 0, to});
    return finish(*reader, 1)[tag].error.empty();
  };
  REQUIRE(reads(0));
  auto before = open_descriptors(::getpid());
  socket_greeting nearly;
  nearly.server = socket_peer_from(memory->region().peer).server;
  nearly.server[15] ^= std::byte{1};
  std::mt19937_64 random(7);
  std::vector<descriptor> silent;
  for (int i = 0; i < 3000; ++i) {
    auto fd = connect_to(at, std::chrono::milliseconds(2000));
    switch (i % 5) {
      case 0: break; // closes at once
      case 1: {
        std::vector<std::byte> noise(1 + random() % 300);
        fill(noise, random);
        ::send(fd.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
        break;
      }
      case 2: ::send(fd.get(), &nearly, sizeof nearly, MSG_NOSIGNAL); break;
      case 3: { // reset rather than closed
        linger hard{1, 0};
        ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        break;
      }
      default:
        ::send(fd.get(), &nearly, 10, MSG_NOSIGNAL);
        if (silent.size() < 300)
          silent.push_back(std::move(fd));
    }
    if (i % 500 == 0)
      REQUIRE(reads(static_cast<std::uint64_t>(i) + 1));
  }
  // The silent ones are cut by the server.
  for (auto& fd : silent) {
    std::byte b{};
    REQUIRE(comes_true([&] {
      auto n = ::recv(fd.get(), &b, 1, MSG_DONTWAIT);
      return n == 0 || (n < 0 && errno != EAGAIN);
    }));
  }
  silent.clear();
  REQUIRE(comes_true([&] { return open_descriptors(::getpid()) <= before; }));
  REQUIRE(reads(99999));
}

TEST_CASE("UCX: what strangers leave at a port of a reader that has nothing to do is cleared away") {
  ucx_options how;
  how.transports = "tcp";
  how.devices = "lo";
  ucx_transport carrier(how);
  auto reader = carrier.make_reader();
  auto memory = carrier.expose(1000, memory_kind::host);
  auto ports = listening_ports(::getpid());
  REQUIRE(ports.size() == 2); // of the reader's worker and the publisher's
  auto before = open_descriptors(::getpid());
  for (int i = 0; i < 600; ++i) {
    endpoint at{"127.0.0.1", static_cast<std::uint16_t>(i % 2 == 0 ? *ports.begin() : *ports.rbegin())};
    auto fd = connect_to(at, std::chrono::milliseconds(2000));
    if (i % 3 == 0)
      ::send(fd.get(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
  }
  REQUIRE(comes_true([&] { return open_descriptors(::getpid()) <= before; }));
  std::vector<std::byte> to(1000, std::byte{1});
  reader->post(1, {&memory->region(), 0, to});
  REQUIRE(finish(*reader, 1)[1].error.empty());
  REQUIRE(to == std::vector<std::byte>(1000));
}

TEST_CASE("layered: no port is open but the publisher's own") {
  ucx_options how;
  how.transports = without_tcp;
  auto before = listening_ports(::getpid()).size();
  layered_transport carrier(how, {});
  auto reader = carrier.make_reader();
  REQUIRE(listening_ports(::getpid()).size() == before);
  auto memory = carrier.expose(1000, memory_kind::host);
  REQUIRE(listening_ports(::getpid()).size() == before + 1);
}

TEST_CASE("versions are pulled over sockets from several ranks") {
  std::vector<std::unique_ptr<socket_transport>> hosts;
  tensor_set trainer;
  trainer.add("a", dtype::f32, {300, 257});
  trainer.add("b", dtype::f32, {7});
  trainer.add("c", dtype::f32, {1000, 1000});
  std::vector<std::unique_ptr<publisher>> ranks;
  for (int i = 0; i < 2; ++i) {
    hosts.push_back(std::make_unique<socket_transport>());
    ranks.push_back(std::make_unique<publisher>(*hosts.back(), replicated(trainer.views()),
                                                publisher_options{}));
  }
  tensor_set staging = tensor_set::like(replicated(trainer.views()), dtype::f32);
  socket_transport own;
  puller sink(own, staging.views(), replicated(staging.views()));
  std::mt19937_64 random(3);
  for (std::int32_t v = 0; v < 4; ++v) {
    trainer.randomise(random);
    std::vector<manifest> parts;
    for (auto& r : ranks)
      parts.push_back(*r->publish({v}, trainer.views(), v));
    auto report = sink.pull(manifest_from_binary(to_binary(merge(parts))), {});
    INFO(report.error);
    REQUIRE(report.ready());
    REQUIRE(same_bytes(trainer, staging));
  }
}

TEST_CASE("where UCX has no way, sockets take over") {
  // "self" reaches a worker of its own only.
  for (const auto* ucx : {"self", "sm"}) {
    ucx_options how;
    how.transports = ucx;
    layered_transport trainer_side(how, {});
    layered_transport generator_side(how, {});
    tensor_set trainer;
    trainer.add("a", dtype::f32, {300, 257});
    trainer.add("b", dtype::f32, {70});
    publisher source(trainer_side, replicated(trainer.views()), {});
    auto staging = tensor_set::like(replicated(trainer.views()), dtype::f32);
    puller sink(generator_side, staging.views(), replicated(staging.views()));
    std::mt19937_64 random(4);
    for (std::int32_t v = 0; v < 3; ++v) {
      trainer.randomise(random);
      auto report = sink.pull(*source.publish({v}, trainer.views(), v), {});
      INFO(ucx << ": " << report.error);
      REQUIRE(report.ready());
      REQUIRE(same_bytes(trainer, staging));
    }
  }
}

TEST_CASE("a publisher's address that was damaged is told from one") {
  socket_peer peer{"host process 1", random_secret(), {{"127.0.0.1", 80}, {"node-b", 65535}}};
  auto text = to_text(peer);
  auto back = socket_peer_from(text);
  REQUIRE(back.label == peer.label);
  REQUIRE(same(back.server, peer.server));
  REQUIRE(back.endpoints.size() == 2);
  REQUIRE(back.endpoints[1].host == "node-b");
  REQUIRE(back.endpoints[1].port == 65535);
  for (std::size_t n = 0; n < text.size(); ++n)
    if (n != text.find('\n') + 17 && n != text.find("node-b"))
      REQUIRE_THROWS_AS(socket_peer_from(text.substr(0, n)), user_error);
}
