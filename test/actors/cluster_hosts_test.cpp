// Clusters over several hosts, which are network namespaces here, and the evaluator's node killed.

#include "runtime/scratch_folder.hpp"
#include "test/actors/watched_program.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace millrace;
using test::check_accounts, test::endless, test::read, test::tiny_cluster, test::watched;
using test::write;

namespace {

/// A network of its own, as long as this lives: an empty one, with nothing but its own loopback.
class host {
public:
  host() {
    int ready[2];
    if (pipe(ready) != 0)
      return;
    const auto parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const char made = getppid() == parent && unshare(CLONE_NEWNET) == 0 ? 1 : 0;
      if (::write(ready[1], &made, 1) != 1 || made == 0)
        _exit(1);
      for (;;)
        pause();
    }
    char made = 0;
    made_ = pid_ > 0 && ::read(ready[0], &made, 1) == 1 && made == 1;
    close(ready[0]);
    close(ready[1]);
    made_ = made_ && run("/usr/bin/env ip link set lo up");
  }
  ~host() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  host(const host&) = delete;
  host& operator=(const host&) = delete;

  explicit operator bool() const { return made_; }
  [[nodiscard]] std::vector<std::string> prefix() const {
    return {"/usr/bin/nsenter", "-t", std::to_string(pid_), "-n"};
  }
  [[nodiscard]] bool run(const std::string& command) const {
    std::string all;
    for (const auto& word : prefix())
      all += word + " ";
    return std::system((all + command + " > /dev/null 2>&1").c_str()) == 0;
  }
  /// A cable to another one; both get their addresses.
  [[nodiscard]] bool join(const host& other, const std::string& mine, const std::string& its) const {
    return run("ip link add cable type veth peer name cable netns " + std::to_string(other.pid_))
           && run("ip addr add " + mine + "/24 dev cable") && run("ip link set cable up")
           && other.run("ip addr add " + its + "/24 dev cable")
           && other.run("ip link set cable up");
  }

private:
  pid_t pid_ = -1;
  bool made_ = false;
};

} // namespace

TEST_CASE("cluster: `up` on a host without the trainer's node") {
  host a, b;
  if (!a || !b || !a.join(b, "10.77.1.1", "10.77.1.2")) {
    WARN("not tried: it needs root, nsenter and ip, to make hosts out of network namespaces");
    return;
  }
  scratch_folder folder("millrace-test");
  auto j = tiny_cluster(endless);
  auto& nodes = j["cluster"]["nodes"];
  nodes[0]["host"] = nodes[3]["host"] = "10.77.1.1";
  nodes[1]["host"] = nodes[2]["host"] = "10.77.1.2";
  j["cluster"]["insecure"] = true;
  auto config = write(folder.path() / "c.json", j);
  auto run = folder.path() / "run";
  watched with({"up", config, "--run-dir", run.string()}, a.prefix());
  auto without = std::make_unique<watched>(std::vector<std::string>{"up", config}, b.prefix());
  REQUIRE(with.says("node gen0 is up"));
  REQUIRE(with.says("node gen1 is up"));
  CHECK(with.says("2 of 4 nodes on this host"));
  CHECK(without->says("2 of 4 nodes on this host"));
  // Interrupted, its nodes leave by their own will, and the run waits for others.
  without->signal(SIGINT);
  CHECK(without->ends() == 130);
  CHECK(with.says("node gen0 leaves"));
  CHECK(with.says("node gen1 leaves"));
  without = std::make_unique<watched>(std::vector<std::string>{"up", config}, b.prefix());
  CHECK(with.trains_on(100));
  CHECK(watched({"down", config}, a.prefix()).ends() == 0);
  CHECK(with.ends() == 130);
  CHECK(without->ends() == 0); // it heard that the run is over
  check_accounts(read(run / "summary.json"), 16);
}

TEST_CASE("cluster: the evaluator's node killed, it evaluates again when it is back") {
  scratch_folder folder("millrace-test");
  auto j = tiny_cluster(endless);
  j["run"]["eval_every"] = 10;
  j["cluster"]["nodes"][2] = {{"name", "exam"}, {"actors", {{"evaluator", 1}}}};
  auto config = write(folder.path() / "c.json", j);
  auto run = folder.path() / "run";
  watched up({"up", config, "--run-dir", run.string()});
  auto evaluations = [&] {
    std::size_t n = 0;
    for (auto at = up.said().find("while training"); at != std::string::npos;
         at = up.said().find("while training", at + 1))
      ++n;
    return n;
  };
  auto more_than = [&](std::size_t before) {
    return test::comes_true([&] {
      up.says("never said", 0.1);
      return evaluations() > before;
    });
  };
  REQUIRE(up.says("node exam is up"));
  REQUIRE(more_than(0));
  auto first_life = up.node("exam");
  kill(first_life, SIGKILL);
  REQUIRE(up.says("node exam is gone"));
  REQUIRE(up.comes_back("exam", first_life));
  CHECK(more_than(evaluations()));
  CHECK(watched({"down", config}).ends() == 0);
  CHECK(up.ends() == 130);
}
