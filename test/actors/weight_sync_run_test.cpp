// How weights travel in clusters of real processes: changes only, and strangers at the port.

#include "actors/http_client.hpp"
#include "runtime/scratch_folder.hpp"
#include "test/actors/watched_program.hpp"
#include "test/patience.hpp"
#include "test/weightsync/listening_ports.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <arpa/inet.h>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <netinet/in.h>
#include <sstream>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

using namespace millrace;
using test::comes_true, test::endless, test::read, test::tiny_cluster, test::watched, test::write;
namespace fs = std::filesystem;

namespace {

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The sum of a metric over all actors of a running cluster.
double total(const fs::path& run, const std::string& metric) {
  std::istringstream lines(http_get(find_run(run.string()), "metrics").body);
  double sum = 0;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(metric + "{") || line.starts_with(metric + " "))
      sum += std::stod(line.substr(line.rfind(' ')));
  return sum;
}

struct footprint {
  long descriptors = 0, threads = 0, rss_kib = 0;
};

footprint footprint_of(pid_t pid) {
  auto proc = fs::path("/proc") / std::to_string(pid);
  footprint f;
  f.descriptors = weightsync::open_descriptors(pid);
  std::ifstream status(proc / "status");
  for (std::string key; status >> key;)
    if (key == "VmRSS:")
      status >> f.rss_kib;
    else if (key == "Threads:")
      status >> f.threads;
  return f;
}

void knock(int port, int i) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<std::uint16_t>(port));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0);
  const std::uint64_t ucx = 0xCAFEBABE12345678ULL; // how a UCX process greets
  const std::string greetings[] = {"", "\x16\x03\x01garbage", "GET / HTTP/1.1\r\n\r\n",
                                   std::string(5000, 'x'),
                                   std::string(reinterpret_cast<const char*>(&ucx), sizeof ucx)
                                     + std::string(200, '\xff')};
  const auto& said = greetings[i % 5];
  [[maybe_unused]] auto sent = send(fd, said.data(), said.size(), MSG_NOSIGNAL);
  linger hard{1, 0};
  if (i % 2 == 0)
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  close(fd);
}

/// Nothing depends on who is quicker: one generator, every batch from the newest version.
nlohmann::json in_step(bool delta) {
  auto j = tiny_cluster(25);
  j["cluster"]["nodes"].erase(2);
  j["rollout"]["eta"] = 0;
  j["generator"]["dtype"] = "bf16";
  j["trainer"]["lr"] = 1e-5; // of which bf16 sees little
  j["weight_sync"]["delta"] = delta;
  j["run"]["eval_every"] = 0;
  return j;
}

} // namespace

TEST_CASE("cluster: changes only give the same training, bit by bit") {
  scratch_folder folder("millrace-test");
  std::string weights[2];
  for (bool delta : {false, true}) {
    auto run = folder.path() / (delta ? "delta" : "full");
    auto config = write(folder.path() / "c.json", in_step(delta));
    watched up({"up", config, "--run-dir", run.string()});
    CHECK(up.ends() == 0);
    INFO(up.said());
    for (const auto& entry : fs::recursive_directory_iterator(run))
      if (entry.path().filename() == "model.safetensors")
        weights[delta] = text_of(entry.path());
    REQUIRE(!weights[delta].empty());
  }
  CHECK(weights[0] == weights[1]);
}

TEST_CASE("cluster: changes only save most of the bytes") {
  scratch_folder folder("millrace-test");
  auto j = in_step(true);
  j["run"]["steps"] = endless;
  auto run = folder.path() / "run";
  watched up({"up", write(folder.path() / "c.json", j), "--run-dir", run.string()});
  REQUIRE(up.says("step   10"));
  auto saved = [&] { return total(run, "millrace_weight_pull_saved_bytes_total"); };
  CHECK(comes_true([&] { return saved() > 100'000; }));
  CHECK(saved() > total(run, "millrace_weight_pull_bytes_total"));
  up.signal(SIGINT);
  up.ends();
}

TEST_CASE("cluster: 10,000 strangers at the port of the weights leave nothing behind") {
  scratch_folder folder("millrace-test");
  auto j = tiny_cluster(endless);
  j["weight_sync"]["transport"] = GENERATE("tcp", "auto");
  auto run = folder.path() / "run";
  watched up({"up", write(folder.path() / "c.json", j), "--run-dir", run.string()});
  REQUIRE(up.says("step   10"));
  auto monitor = read(run / "monitor.json");
  auto head = monitor["pid"].get<pid_t>();
  auto url = monitor["url"].get<std::string>();
  auto ports = weightsync::listening_ports(head);
  ports.erase(j["cluster"]["nodes"][0]["port"].get<int>());
  ports.erase(std::stoi(url.substr(url.rfind(':') + 1)));
  REQUIRE(ports.size() == 1);
  auto pulled = [&] { return total(run, "millrace_weight_pull_bytes_total"); };
  for (int i = 0; i < 1000; ++i)
    knock(*ports.begin(), i);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  auto before = footprint_of(head);
  auto pulled_before = pulled();
  for (int i = 0; i < 10'000; ++i)
    knock(*ports.begin(), i);
  CHECK(comes_true([&] { return footprint_of(head).descriptors <= before.descriptors + 2; }));
  auto after = footprint_of(head);
  INFO("descriptors " << before.descriptors << " -> " << after.descriptors << ", threads "
                      << before.threads << " -> " << after.threads << ", RSS in KiB "
                      << before.rss_kib << " -> " << after.rss_kib);
  CHECK(after.threads == before.threads);
  CHECK(after.rss_kib < before.rss_kib + 20'000);
  CHECK(comes_true([&] { return pulled() > pulled_before; }));
  up.signal(SIGINT);
  up.ends();
}
