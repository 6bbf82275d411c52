#include "actors/http_server.hpp"
#include "runtime/error.hpp"
#include "test/actors/http_socket.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>

#include <atomic>
#include <map>
#include <mutex>
#include <random>

using namespace millrace;
using test::http_socket;

namespace {

http_parse parse(std::string_view text) { return parse_http_request(text); }
using state = http_parse::state;

/// A server that says what it was asked, and counts what it dropped.
class echo {
public:
  explicit echo(http_limits limits = {})
    : server_("127.0.0.1", 0,
              [](const http_request& r) {
                if (r.path == "/throw")
                  throw std::runtime_error("no luck");
                if (r.path == "/large")
                  return http_response{200, "text/plain", std::string(4'000'000, 'x')};
                return http_response{200, "text/plain", r.method + " " + r.path};
              },
              [this](std::string_view why) {
                std::lock_guard lock(mutex_);
                ++dropped_[std::string(why)];
              },
              limits) {}

  [[nodiscard]] int port() const { return server_.port(); }
  [[nodiscard]] std::size_t open() const { return server_.open(); }
  int dropped(const std::string& why) {
    std::lock_guard lock(mutex_);
    return dropped_[why];
  }
  bool drops(const std::string& why, int n) {
    return test::comes_true([&] { return dropped(why) >= n; });
  }

private:
  std::mutex mutex_;
  std::map<std::string, int> dropped_;
  http_server server_;
};

} // namespace

TEST_CASE("http: requests are read") {
  auto p = parse("GET /a%20b/c?x=1&token=a%2Bb+c&flag HTTP/1.1\r\nHost: h:1\r\nX-Y:  z \r\n\r\nrest");
  REQUIRE(p.what == state::complete);
  CHECK(p.request.method == "GET");
  CHECK(p.request.path == "/a b/c");
  CHECK(p.request.query.at("x") == "1");
  CHECK(p.request.query.at("token") == "a+b c");
  CHECK(p.request.query.at("flag") == "");
  CHECK(p.request.headers.at("host") == "h:1");
  CHECK(p.request.headers.at("x-y") == "z");
  CHECK(p.request.keep_alive);
  CHECK(std::string("GET /a%20b/c?x=1&token=a%2Bb+c&flag HTTP/1.1\r\nHost: h:1\r\nX-Y:  z \r\n\r\n").size()
        == p.consumed);
  CHECK_FALSE(parse("GET / HTTP/1.0\r\n\r\n").request.keep_alive);
  CHECK_FALSE(parse("GET / HTTP/1.1\r\nConnection: Close\r\n\r\n").request.keep_alive);
  CHECK_FALSE(parse("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc").request.keep_alive);
}

TEST_CASE("http: what is incomplete waits, what is no HTTP is garbage from its first bytes on") {
  for (const char* text : {"", "G", "GET", "GET ", "GET / HTTP/1.1\r\n", "OPTIONS /x"})
    CHECK(parse(text).what == state::incomplete);
  for (const char* text : {"g", "\x16\x03\x01", "GEX", "SSH-2.0", "GET \x01", "GET  HTTP/1.1\r\n\r\n",
                           "GET / SPDY/3\r\n\r\n", "GET x HTTP/1.1\r\n\r\n", "GET /\r\n\r\n",
                           "GET / HTTP/1.1\r\nno colon\r\n\r\n", "GET / HTTP/1.1\r\n: x\r\n\r\n"}) {
    INFO(text);
    CHECK(parse(text).what == state::garbage);
  }
}

TEST_CASE("http: no input breaks the parser") {
  std::mt19937 random(20);
  const std::string seed = "GET /introspect?token=x%41&b HTTP/1.1\r\nHost: localhost:8080\r\nA: b\r\n\r\n";
  for (int i = 0; i < 20000; ++i) {
    auto text = seed;
    for (int k = 0; k < 1 + i % 5; ++k)
      text[random() % text.size()] = static_cast<char>(random() % 256);
    text.resize(random() % (text.size() + 1));
    auto p = parse(text);
    REQUIRE((p.what != state::complete || p.consumed <= text.size()));
  }
}

TEST_CASE("http: answers over a socket, one after another and together") {
  echo server;
  http_socket s{server.port()};
  CHECK(s.get("/one").body == "GET /one");
  CHECK(s.get("/two").body == "GET /two");
  s.send("GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n");
  CHECK(s.receive().body == "GET /a");
  CHECK(s.receive().body == "GET /b");
  CHECK(s.get("/throw").status == 500);
  CHECK(s.get("/large").body.size() == 4'000'000);
  s.send("HEAD /x HTTP/1.1\r\n\r\n");
  auto head = s.receive_head();
  CHECK(head.find("Content-Length: 7") != std::string::npos);
  s.send("POST /x HTTP/1.1\r\nContent-Length: 2\r\n\r\nab");
  CHECK(s.receive().status == 405);
  CHECK(s.closed());
  http_socket slow{server.port()};
  for (char c : std::string("GET /slow HTTP/1.1\r\n\r\n"))
    slow.send(std::string(1, c));
  CHECK(slow.receive().body == "GET /slow");
}

TEST_CASE("http: garbage, half-open and slow connections are dropped and counted") {
  http_limits l;
  l.request_s = 0.2;
  l.idle_s = 0.3;
  echo server{l};
  http_socket garbage{server.port()}, half{server.port()}, slow{server.port()}, idle{server.port()};
  garbage.send("\x16\x03\x01\x02");
  slow.send("GET / HT");
  CHECK(idle.get("/").status == 200);
  CHECK(garbage.closed());
  CHECK(server.drops("garbage", 1));
  CHECK(half.closed());
  CHECK(slow.closed());
  CHECK(server.drops("too slow", 2));
  CHECK(idle.closed()); // said nothing wrong: counted nowhere
  { http_socket gone{server.port()}; }
  CHECK(server.drops("gone", 1));
  http_socket endless{server.port()};
  endless.send("GET /" + std::string(20'000, 'a'));
  CHECK(server.drops("garbage", 2));
  CHECK(http_socket{server.port()}.get("/").status == 200);
  CHECK(server.dropped("too slow") == 2);
}

TEST_CASE("http: a flood takes no more than its limit and keeps nobody waiting") {
  http_limits l;
  l.connections = 16;
  l.request_s = 600; // none of the silent ones makes room by itself
  echo server{l};
  std::vector<std::unique_ptr<http_socket>> flood;
  for (int i = 0; i < 300; ++i)
    flood.push_back(std::make_unique<http_socket>(server.port()));
  CHECK(http_socket{server.port()}.get("/here").body == "GET /here");
  CHECK(server.open() <= 16);
  CHECK(server.drops("too many", 300 - 16));
}

TEST_CASE("http: an address that can't be had is said plainly") {
  echo first;
  auto again = [&] {
    http_server second("127.0.0.1", first.port(), {}, {});
  };
  REQUIRE_THROWS_WITH(again(), Catch::Contains("which another process on this machine uses"));
  REQUIRE_THROWS_WITH(http_server("no.such.host.invalid", 0, {}, {}),
                      Catch::Contains("monitor.host: found \"no.such.host.invalid\""));
}
