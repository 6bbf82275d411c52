// Clusters of real processes on this machine, with what happens to processes.

#include "actors/certificates.hpp"
#include "runtime/scratch_folder.hpp"
#include "test/actors/watched_program.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace millrace;
using test::check_accounts, test::endless, test::read, test::tiny_cluster, test::watched;
using test::comes_true, test::patience, test::write;
namespace fs = std::filesystem;

namespace {

int connect_to(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<std::uint16_t>(port));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0);
  return fd;
}

/// Whether the other end closes this connection. Closes it too.
bool cut_off(int fd) {
  const timeval limit{patience.count(), 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  char byte = 0;
  const auto n = recv(fd, &byte, 1, 0);
  close(fd);
  return n == 0 || (n < 0 && errno == ECONNRESET);
}

/// Strangers at a port: silence, noise, HTTP, a greeting that claims 4 GB.
void knock(int port) {
  const std::string huge("\x00\x00\x00\x00\xff\xff\xff\xff", 8);
  const std::vector<std::string> greetings{"", "\x16\x03\x01garbage", "GET / HTTP/1.1\r\n\r\n",
                                           huge + std::string(64, '\0'), std::string(5000, 'x')};
  std::vector<int> open;
  for (int i = 0; i < 200; ++i) {
    const int fd = connect_to(port);
    const auto& g = greetings[static_cast<std::size_t>(i) % greetings.size()];
    [[maybe_unused]] auto sent = send(fd, g.data(), g.size(), MSG_NOSIGNAL);
    open.push_back(fd);
  }
  for (auto fd : open)
    close(fd);
}

} // namespace

TEST_CASE("cluster: nodes that are killed and stopped come back, and every step is trained") {
  scratch_folder folder("millrace-test");
  auto config = write(folder.path() / "c.json", tiny_cluster(endless));
  auto run = folder.path() / "run";
  watched up({"up", config, "--run-dir", run.string()});
  REQUIRE(up.says("node gen0 is up"));
  REQUIRE(up.says("node gen1 is up"));
  REQUIRE(up.says("node judge is up"));
  kill(up.node("gen0"), SIGKILL);
  REQUIRE(up.says("node gen0 is gone"));
  kill(up.node("judge"), SIGKILL); // with the replay buffer
  REQUIRE(up.says("node judge is gone"));
  auto stopped = up.node("gen1");
  kill(stopped, SIGSTOP);
  CHECK(up.says("node gen1 is gone"));
  kill(stopped, SIGCONT);
  CHECK(up.trains_on(300));
  CHECK(watched({"down", config}).ends() == 0);
  CHECK(up.ends() == 130);
  auto summary = read(run / "summary.json");
  CHECK(summary["staleness_max"] <= 2);
  CHECK(summary["node_peak_rss_bytes"]["head"] == summary["peak_rss_bytes"]);
  check_accounts(summary, 16);
  CHECK(kill(up.node("gen0"), 0) != 0); // nobody is left behind
  CHECK(kill(up.node("gen1"), 0) != 0);
  CHECK(kill(up.node("judge"), 0) != 0);
}

TEST_CASE("run: the whole process killed, --resume goes on from its newest checkpoint") {
  scratch_folder folder("millrace-test");
  auto j = tiny_cluster(endless);
  j.erase("cluster");
  j["run"]["checkpoint_every"] = 40;
  auto config = write(folder.path() / "c.json", j);
  auto run = folder.path() / "run";
  watched first({"run", config, "--run-dir", run.string(), "--seed", "6", "--set", "rollout.eta=1"});
  REQUIRE(first.has_checkpoint(run));
  first.signal(SIGKILL);
  REQUIRE(first.ends() != 0);
  REQUIRE_FALSE(fs::exists(run / "summary.json"));
  const int steps = first.steps() + 100;
  watched again({"run", "--run-dir", run.string(), "--resume", // by its own configuration
                 "--set", "run.steps=" + std::to_string(steps)});
  INFO(first.said() << again.said());
  CHECK(again.ends() == 0);
  CHECK_THAT(again.said(), Catch::Contains("going on from v"));
  auto summary = read(run / "summary.json");
  CHECK(summary["seed"] == 6);
  CHECK(summary["eta"] == 1);
  CHECK(summary["steps"] == steps);
  check_accounts(summary, 16);
  watched done({"run", "--run-dir", run.string(), "--resume"}); // there is nothing to go on with
  CHECK(done.ends() == 2);
  CHECK_THAT(done.said(), Catch::Contains("has done all its " + std::to_string(steps) + " steps"));
  CHECK(read(run / "summary.json") == summary);
}

TEST_CASE("run: a first Ctrl-C waits for the answer that is being judged, a second one for nothing") {
  scratch_folder folder("millrace-test");
  auto j = tiny_cluster(endless);
  j.erase("cluster");
  const auto judging = folder.path() / "judging";
  j["reward"] = {{"kind", "program"},
                 {"params", {{"command", {"sh", "-c", "touch " + judging.string() + "; exec sleep 600"}},
                             {"timeout_s", 600}}}};
  auto config = write(folder.path() / "c.json", j);
  watched run({"run", config, "--run-dir", (folder.path() / "run").string()});
  REQUIRE(comes_true([&] { return fs::exists(judging); }));
  run.signal(SIGINT);
  CHECK(run.ends(2) == -1);
  run.signal(SIGINT);
  CHECK(run.ends() == 1); // by the signal itself
}

TEST_CASE("cluster: the trainer's node killed, --resume goes on from its newest checkpoint") {
  scratch_folder folder("millrace-test");
  auto j = tiny_cluster(endless);
  j["run"]["checkpoint_every"] = 20;
  auto config = write(folder.path() / "c.json", j);
  auto run = folder.path() / "run";
  watched first({"up", config, "--run-dir", run.string()});
  REQUIRE(first.says("node gen0 is up"));
  REQUIRE(first.has_checkpoint(run));
  auto head = read(run / "monitor.json")["pid"].get<pid_t>();
  REQUIRE(kill(head, SIGKILL) == 0);
  CHECK(first.ends() != 0);
  CHECK_THAT(first.said(), Catch::Contains("--resume")); // it says how
  CHECK(kill(first.node("gen0"), 0) != 0);
  const int steps = first.steps() + 100;
  watched again({"up", "--run-dir", run.string(), "--resume",
                 "--set", "run.steps=" + std::to_string(steps)});
  CHECK(again.ends() == 0);
  CHECK_THAT(again.said(), Catch::Contains("going on from v"));
  auto summary = read(run / "summary.json");
  CHECK(summary["steps"] == steps);
  check_accounts(summary, 16);
}

TEST_CASE("cluster: with certificates nodes know each other, and nobody else gets in") {
  scratch_folder folder("millrace-test");
  auto files = make_certificates(folder.path() / "certs", 1);
  auto strangers = make_certificates(folder.path() / "other", 1);
  auto j = tiny_cluster(endless);
  j["cluster"]["nodes"][1]["actors"] = {{"generator", 1}, {"reward", 1}, {"replay", 1}};
  j["cluster"]["nodes"].erase(3);
  j["cluster"]["nodes"].erase(2);
  auto plain = write(folder.path() / "plain.json", j);
  j["cluster"]["tls"] = {{"ca", files.ca}, {"certificate", files.certificate}, {"key", files.key}};
  auto config = write(folder.path() / "c.json", j);
  j["cluster"]["tls"] = {{"ca", strangers.ca}, {"certificate", strangers.certificate},
                         {"key", strangers.key}};
  auto stranger = write(folder.path() / "stranger.json", j);

  watched up({"up", config, "--run-dir", (folder.path() / "run").string()});
  REQUIRE(up.says("node gen0 is up"));
  CHECK(watched({"status", plain}).ends() == 2);
  CHECK(watched({"status", stranger}).ends() == 2);
  auto swapped = j;
  swapped["cluster"]["tls"] = {{"ca", files.ca}, {"certificate", files.key}, {"key", files.key}};
  watched confused({"status", write(folder.path() / "swapped.json", swapped)});
  CHECK(confused.ends() == 2);
  CHECK_THAT(confused.said(), Catch::Contains("cluster.tls.certificate")
                                && Catch::Contains("holds no certificate"));
  // Another training's configuration, at the same port, ends nothing.
  auto other = swapped;
  other["cluster"]["tls"] = {{"ca", files.ca}, {"certificate", files.certificate}, {"key", files.key}};
  other["cluster"]["nodes"][1]["name"] = "gen7";
  watched mistaken({"down", write(folder.path() / "another.json", other)});
  CHECK(mistaken.ends() == 2);
  CHECK_THAT(mistaken.said(), Catch::Contains("is another one: its nodes are ")
                                && Catch::Contains("gen0"));
  const int silent = connect_to(j["cluster"]["nodes"][0]["port"].get<int>());
  knock(j["cluster"]["nodes"][0]["port"].get<int>());
  CHECK(up.said().find("is gone") == std::string::npos); // they cut nobody's link
  watched status({"status", config});
  CHECK(status.ends() == 0);
  CHECK_THAT(status.said(), Catch::Contains("nodes up") && Catch::Contains("gen0"));
  watched scale({"scale", "generators=2", config});
  CHECK(scale.ends() == 0);
  CHECK_THAT(scale.said(), Catch::Contains("generator: 1 → 2"));
  auto shows_second = [&] { // both generators of gen0 are there
    return comes_true([&] {
      watched list({"inspect", "--run", (folder.path() / "run").string()});
      return list.ends() == 0 && list.said().find("gen0/generator-1") != std::string::npos;
    });
  };
  CHECK(shows_second());
  const auto first_life = up.node("gen0");
  kill(first_life, SIGKILL);
  REQUIRE(up.says("node gen0 is gone"));
  CHECK(up.comes_back("gen0", first_life));
  CHECK(shows_second()); // it comes back as it was scaled
  CHECK(cut_off(silent)); // connected a while ago, and nobody has ever spoken
  CHECK(watched({"down", config}).ends() == 0);
  CHECK(up.ends() == 130);
}

TEST_CASE("cluster: what can't work is said plainly") {
  scratch_folder folder("millrace-test");
  auto refused = [](const std::vector<std::string>& arguments, const std::string& why) {
    watched w(arguments);
    CHECK(w.ends() == 2);
    CHECK_THAT(w.said(), Catch::Contains(why));
  };
  auto j = tiny_cluster(5);
  j["cluster"]["join_timeout_s"] = 0.5;
  auto config = write(folder.path() / "c.json", j);
  refused({"node", config, "--name", "gen7"}, "no such node in cluster.nodes");
  refused({"node", config, "--name", "gen0"}, "was not reached at 127.0.0.1");
  refused({"status", config}, "no cluster answers at");
  refused({"scale", "generators", config}, "expected KIND=COUNT");
  refused({"status", config, "--set", "cluster.nodes=[]"}, "cluster.nodes: is missing");
  refused({"run", config, "--sed=3"}, "did you mean \"--seed\"?");
  refused({"up", config, "--rollout.eta=4"}, "goes with --set rollout.eta=VALUE");
  refused({"status", config, "--jsn"}, "an option of `millrace status` (did you mean \"--json\"?)");
  refused({"inspect", "nobody", (folder.path() / "none").string()}, (folder.path() / "none").string());
  j["cluster"].erase("nodes");
  refused({"up", write(folder.path() / "none.json", j)}, "cluster.nodes: is missing");
}
