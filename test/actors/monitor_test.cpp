#include "actors/monitor.hpp"
#include "runtime/error.hpp"
#include "runtime/metrics/catalogue.hpp"
#include "runtime/metrics/exposition.hpp"
#include "runtime/scratch_folder.hpp"
#include "test/actors/http_socket.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>

#include <atomic>
#include <fstream>
#include <thread>

using namespace millrace;
using test::comes_true;
using test::http_socket;
namespace fs = std::filesystem;

namespace {

/// A run that one test watches, with a clock that it moves by hand.
struct watched {
  explicit watched(settings s = {}) : options(std::move(s)) {
    shown = std::make_unique<monitor>(options, folder, [this] { return now.load(); },
                                      std::make_shared<snapshot_board>());
  }
  [[nodiscard]] nlohmann::json announced() const {
    std::ifstream in(folder / "monitor.json");
    return nlohmann::json::parse(in);
  }
  [[nodiscard]] int port() const {
    auto url = announced()["url"].get<std::string>();
    return std::atoi(url.c_str() + url.rfind(':') + 1);
  }
  nlohmann::json introspect() {
    return nlohmann::json::parse(http_socket{port()}.get("/introspect").body);
  }

  std::atomic<double> now{1000};
  settings options;
  scratch_folder scratch{"millrace-test"};
  fs::path folder = scratch.path();
  std::unique_ptr<monitor> shown;
};

} // namespace

TEST_CASE("monitor: a run is found by its folder, and shows every page") {
  watched run;
  run.shown->stage("warm-up");
  auto trainer = run.shown->board()->add("trainer", "trainer", 1000);
  trainer->waiting("replay", "a batch", 1000);
  auto url = run.shown->url();
  CHECK(run.announced()["url"] == url);
  CHECK(url.starts_with("http://127.0.0.1:"));
  http_socket s{run.port()};
  auto page = s.get("/");
  CHECK(page.status == 200);
  CHECK(page.body.find("<title>Millrace</title>") != std::string::npos);
  for (const char* outside : {"http://", "https://", "//cdn", "@import", "src=\""})
    CHECK(page.body.find(outside) == std::string::npos); // it needs nothing else
  auto text = s.get("/metrics");
  CHECK(text.head.find("text/plain; version=0.0.4") != std::string::npos);
  CHECK(text.body.find("# TYPE millrace_steps_total counter\n"
                       "millrace_steps_total{actor=\"trainer\",node=\"local\"} 0\n")
        != std::string::npos);
  run.now = 1002.5;
  auto j = run.introspect();
  CHECK(j["run"]["up_s"] == 2.5);
  CHECK(j["stall"].is_null());
  REQUIRE(j["actors"].size() == 2);
  CHECK(j["actors"][0]["state"] == "warm-up");
  CHECK(j["actors"][1]["waits_for"] == "replay");
  CHECK(j["actors"][1]["since"] == 2.5);
  CHECK(j["rates"]["trained"] == 0);
  CHECK(s.get("/healthz").body == "ok\n");
  CHECK(nlohmann::json::parse(s.get("/series").body).contains("t"));
  CHECK(s.get("/other").status == 404);
  auto counted = run.introspect()["actors"][0]["counters"]["millrace_http_requests_total"];
  CHECK(counted["served"] == 5); // before this one
  CHECK(counted["not found"] == 1);
  s.send("\x01\x02");
  CHECK(comes_true([&] {
    return run.introspect()["actors"][0]["counters"]["millrace_http_connections_dropped_total"]["garbage"] == 1;
  }));
}

TEST_CASE("monitor: actors come as the stream goes, this node's first, numbers by their value") {
  watched run;
  auto& board = *run.shown->board();
  std::vector<std::shared_ptr<vitals>> here;
  for (const char* name : {"generator-10", "generator-2"})
    here.push_back(board.add("generator", name, 1000));
  here.push_back(board.add("controller", "controller", 1000));
  actor_snapshot far;
  far.kind = far.name = "generator";
  for (const char* node : {"node-10", "a-node", "node-9"})
    run.shown->tree()->update(node, {far}, 1000);
  std::string order;
  const auto seen = run.introspect();
  for (const auto& a : seen["actors"])
    if (a["kind"] != "process")
      order += a["node"].get<std::string>() + "/" + a["name"].get<std::string>() + " ";
  CHECK(order
        == "local/controller local/generator-2 local/generator-10 a-node/generator node-9/generator "
           "node-10/generator ");
}

TEST_CASE("monitor: an actor that ended is gone, its file too when the run has ended") {
  watched run;
  auto trainer = run.shown->board()->add("trainer", "trainer", 1000);
  CHECK(run.introspect()["actors"].size() == 2);
  trainer.reset();
  CHECK(run.introspect()["actors"].size() == 1);
  run.shown.reset();
  CHECK_FALSE(fs::exists(run.folder / "monitor.json"));
}

TEST_CASE("monitor: a token keeps strangers out, and the file with it is the user's alone") {
  settings s;
  s.monitor.token = "let me in";
  watched run{s};
  http_socket c{run.port()};
  for (const char* path : {"/", "/metrics", "/introspect", "/healthz", "/series", "/metrics?token=no"}) {
    auto a = c.get(path);
    CHECK(a.status == 401);
    CHECK(a.body.find("millrace_") == std::string::npos);
  }
  CHECK(c.get("/metrics", "Authorization: Bearer let me\r\n").status == 401);
  CHECK(c.get("/metrics", "Authorization: Bearer let me in\r\n").status == 200);
  CHECK(c.get("/?token=let+me%20in").status == 200);
  CHECK(run.announced()["token"] == "let me in");
  auto mode = fs::status(run.folder / "monitor.json").permissions();
  CHECK((mode & (fs::perms::group_all | fs::perms::others_all)) == fs::perms::none);
}

TEST_CASE("monitor: other names for this machine are refused, lest a web page reads it") {
  watched run;
  http_socket s{run.port()};
  s.send("GET /introspect HTTP/1.1\r\nHost: evil.example:80\r\n\r\n");
  CHECK(s.receive().status == 403);
  for (const char* host : {"localhost", "127.0.0.1:99", "[::1]:8080"}) {
    s.send(std::string("GET /healthz HTTP/1.1\r\nHost: ") + host + "\r\n\r\n");
    CHECK(s.receive().status == 200);
  }
}

TEST_CASE("monitor: a stall is at /healthz and /introspect, and ends") {
  settings s;
  s.supervisor.stall_report_s = 5;
  s.log.level = log_level::error;
  log::set_level(log_level::error);
  watched run{s};
  auto trainer = run.shown->board()->add("trainer", "trainer", 1000);
  trainer->waiting("replay", "a batch for the step from v0", 1000);
  http_socket c{run.port()};
  CHECK(comes_true([&] { return nlohmann::json::parse(c.get("/series").body)["t"].size() > 0; }));
  run.now = 1006;
  trainer->beat(0, 1006);
  CHECK(comes_true([&] { return c.get("/healthz").status == 503; }));
  auto text = c.get("/healthz").body;
  CHECK(text.find("trainer  waits 6.0 s for replay: a batch for the step from v0") != std::string::npos);
  CHECK(text.find("no actor answers to \"replay\"") != std::string::npos);
  auto stall = run.introspect()["stall"];
  CHECK(stall["waits"][0]["on"] == "replay");
  trainer->metrics.add(metrics::steps_trained);
  CHECK(comes_true([&] { return c.get("/healthz").status == 200; }));
  auto process = run.introspect()["actors"][0];
  CHECK(process["counters"]["millrace_stalls_total"] == 1);
  log::set_level(log_level::info);
}

TEST_CASE("monitor: off means off; a port that is taken is an error only when it was asked for") {
  settings off;
  off.monitor.enabled = false;
  watched silent{off};
  CHECK(silent.shown->url().empty());
  CHECK_FALSE(fs::exists(silent.folder / "monitor.json"));
  watched first;
  settings same;
  same.monitor.port = first.port();
  REQUIRE_THROWS_AS(watched{same}, user_error);
}

TEST_CASE("monitor: a scrape is quick, and many readers at a time get whole answers") {
  watched run;
  std::vector<std::shared_ptr<vitals>> actors;
  for (int i = 0; i < 30; ++i)
    actors.push_back(run.shown->board()->add("generator", "generator-" + std::to_string(i), 1000));
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop)
      for (auto& a : actors) {
        a->metrics.observe(metrics::answer_length, 12);
        a->working(a->name(), 1000);
        a->waiting("controller", "work", 1000);
      }
  });
  std::vector<std::thread> readers;
  std::atomic<int> whole{0};
  for (int r = 0; r < 4; ++r)
    readers.emplace_back([&] {
      http_socket s{run.port()};
      for (int i = 0; i < 20; ++i)
        if (s.get("/metrics").body.ends_with("\n")
            && nlohmann::json::parse(s.get("/introspect").body)["actors"].size() == 31)
          ++whole;
    });
  for (auto& r : readers)
    r.join();
  stop = true;
  busy.join();
  CHECK(whole == 80);
}
