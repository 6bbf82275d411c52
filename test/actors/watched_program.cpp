#include "test/actors/watched_program.hpp"

#include <catch2/catch.hpp>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace millrace::test {

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof a;
  REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&a), size) == 0);
  REQUIRE(getsockname(fd, reinterpret_cast<sockaddr*>(&a), &size) == 0);
  close(fd);
  return ntohs(a.sin_port);
}

nlohmann::json tiny_cluster(int steps) {
  auto j = nlohmann::json::parse(R"({
    "seed": 5,
    "model": {"architecture": {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1,
                               "intermediate": 64, "max_positions": 48}},
    "data": {"held_out": 20, "arithmetic": {"max_operand": 9}},
    "rollout": {"eta": 2, "batch_size": 16, "group_size": 4, "max_concurrent": 64,
                "progress_every_tokens": 2},
    "sampling": {"max_tokens": 6},
    "generator": {"max_batch": 16},
    "eval": {"prompts": 20},
    "cluster": {"heartbeat_s": 0.3, "lost_after_s": 1.5, "nodes": [
      {"name": "head", "actors": {"trainer": 1}},
      {"name": "gen0", "actors": {"generator": 1}},
      {"name": "gen1", "actors": {"generator": 1}},
      {"name": "judge", "actors": {"reward": 1, "replay": 1}}]}})");
  j["run"]["steps"] = steps;
  j["cluster"]["nodes"][0]["port"] = free_port();
  return j;
}

std::string write(const std::filesystem::path& file, const nlohmann::json& j) {
  std::ofstream(file) << j.dump(2);
  return file.string();
}

nlohmann::json read(const std::filesystem::path& file) {
  std::ifstream in(file);
  REQUIRE(in.good());
  return nlohmann::json::parse(in);
}

watched::watched(const std::vector<std::string>& arguments, std::vector<std::string> prefix)
  : processes_([this](const std::string&, std::string_view line) { said_ += std::string(line) + "\n"; }) {
  auto all = std::move(prefix);
  all.push_back(MILLRACE_PROGRAM);
  all.insert(all.end(), arguments.begin(), arguments.end());
  processes_.start("program", all);
}

template <class Done>
void watched::wait(Done done, double seconds) {
  auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (status_ < 0 && !done() && std::chrono::steady_clock::now() < end)
    for (const auto& e : processes_.watch(0.05))
      status_ = e.status;
}

bool watched::says(const std::string& text, double seconds) {
  auto said = [&] { return said_.find(text) != std::string::npos; };
  wait(said, seconds);
  return said();
}

int watched::ends(double seconds) {
  wait([] { return false; }, seconds);
  return status_;
}

pid_t watched::node(const std::string& name) const {
  auto key = "node " + name + " is up (";
  auto at = said_.find("process ", said_.rfind(key));
  return at == std::string::npos ? -1 : std::atoi(said_.c_str() + at + 8);
}

} // namespace millrace::test
