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

void check_accounts(const nlohmann::json& summary, int batch) {
  const auto& r = summary["rollouts"];
  CHECK(r["trained"] == summary["steps"].get<int>() * batch);
  CHECK(r["admitted"].get<int>() == r["trained"].get<int>() + r["dropped"].get<int>()
                                      + r["filtered"].get<int>() + r["failed"].get<int>()
                                      + r["in_flight"].get<int>());
}

watched::watched(const std::vector<std::string>& arguments, std::vector<std::string> prefix)
  : processes_([this](const std::string&, std::string_view line) { said_ += std::string(line) + "\n"; }) {
  auto all = std::move(prefix);
  all.push_back(MILLRACE_PROGRAM);
  all.insert(all.end(), arguments.begin(), arguments.end());
  processes_.start("program", all);
}

void watched::wait(const std::function<bool()>& done, double seconds) {
  auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (status_ < 0 && !done() && std::chrono::steady_clock::now() < end)
    for (const auto& e : processes_.watch(0.05))
      status_ = e.status;
}

bool watched::comes_true(const std::function<bool()>& event, double seconds) {
  wait(event, seconds);
  if (event())
    return true;
  UNSCOPED_INFO("said" << (status_ < 0 ? " so far" : ", before it ended") << ":\n" << said_);
  return false;
}

bool watched::says(const std::string& text, double seconds) {
  return comes_true([&] { return said_.find(text) != std::string::npos; }, seconds);
}

bool watched::trains_on(int steps, double seconds) {
  const auto last = this->steps() + steps;
  return comes_true([this, last] { return this->steps() >= last; }, seconds);
}

bool watched::comes_back(const std::string& name, pid_t first_life, double seconds) {
  return comes_true([&] { return node(name) != first_life; }, seconds);
}

bool watched::has_checkpoint(const std::filesystem::path& run, double seconds) {
  return comes_true([&] { return exists(run / "checkpoints" / "latest"); }, seconds);
}

int watched::ends(double seconds) {
  wait([] { return false; }, seconds);
  if (status_ < 0)
    UNSCOPED_INFO("said, without ending:\n" << said_);
  return status_;
}

int watched::steps() const {
  const std::string key = "step ";
  const auto none = std::string::npos;
  for (auto at = said_.rfind(key); at != none; at = at == 0 ? none : said_.rfind(key, at - 1))
    if (const int n = std::atoi(said_.c_str() + at + key.size()); n > 0)
      return n;
  return 0;
}

pid_t watched::node(const std::string& name) const {
  const auto told = said_.rfind("node " + name + " is up (");
  INFO("said so far:\n" << said_);
  REQUIRE(told != std::string::npos); // -1 would mean every process, to kill()
  return std::atoi(said_.c_str() + said_.find("process ", told) + 8);
}

} // namespace millrace::test
