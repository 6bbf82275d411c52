#include "runtime/atomic_file.hpp"
#include "runtime/clock.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "runtime/registry.hpp"
#include "runtime/run_directory.hpp"
#include "runtime/scratch_folder.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <functional>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace millrace;
namespace fs = std::filesystem;

namespace {

struct scratch : scratch_folder {
  scratch() : scratch_folder("millrace-test") {}
};

template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const user_error& e) {
    return e.what();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("a file appears whole or not at all") {
  scratch dir;
  const auto file = dir.path() / "a.txt";
  write_file_atomically(file, "old");
  {
    atomic_file f(file);
    f.write("new and unfinished");
    REQUIRE(read_file(file) == "old");
  }
  REQUIRE(read_file(file) == "old");
  REQUIRE(!fs::exists(file.string() + ".partial"));
  {
    atomic_file f(file);
    f.write("ne");
    f.write("w");
    f.commit();
  }
  REQUIRE(read_file(file) == "new");
  REQUIRE(!fs::exists(file.string() + ".partial"));
  write_file_atomically(file, "");
  REQUIRE(read_file(file).empty());
  REQUIRE(contains(error_of([&] { write_file_atomically(dir.path() / "no" / "x", "1"); }),
                   "x.partial: can't create it: No such file or directory"));
  REQUIRE(contains(error_of([&] { (void) read_file(dir.path() / "none"); }), "can't read it"));
}

TEST_CASE("a scratch folder goes with its owner, also one that was killed") {
  scratch dir;
  {
    scratch_folder a("work", dir.path()), b("work", dir.path());
    REQUIRE(fs::is_directory(a.path()));
    REQUIRE(fs::is_directory(b.path())); // and a is still there, though b looked for abandoned ones
  }
  REQUIRE(fs::is_empty(dir.path()));
  const auto child = fork();
  if (child == 0) {
    const scratch_folder killed("work", dir.path());
    write_file_atomically(killed.path() / "left", "behind");
    kill(getpid(), SIGKILL);
  }
  waitpid(child, nullptr, 0);
  REQUIRE(std::distance(fs::directory_iterator(dir.path()), {}) == 2); // it, and its owner's lock
  fs::create_directory(dir.path() / "work-other"); // nobody's: left alone
  {
    scratch_folder next("work", dir.path());
    REQUIRE(std::distance(fs::directory_iterator(dir.path()), {}) == 3);
  }
  REQUIRE(fs::exists(dir.path() / "work-other"));
  const auto none = dir.path() / "none";
  REQUIRE_THROWS_WITH(scratch_folder("work", none),
                      "can't make a folder in " + none.string() + ": No such file or directory");
}

TEST_CASE("a full disk is an error, not a torn file") {
  if (!fs::exists("/dev/full"))
    return;
  scratch dir;
  fs::create_symlink("/dev/full", dir.path() / "a.partial");
  REQUIRE(contains(error_of([&] { write_file_atomically(dir.path() / "a", "x"); }),
                   "No space left on device"));
  REQUIRE(!fs::exists(dir.path() / "a"));
}

TEST_CASE("a run directory is never overwritten, and is held by one") {
  scratch dir;
  const auto path = dir.path() / "deep" / "run";
  {
    run_directory run(path, run_directory::mode::fresh);
    REQUIRE(contains(error_of([&] { run_directory(path, run_directory::mode::fresh); }),
                     "another process is running in this folder"));
    run.write_config("{}\n");
  }
  REQUIRE(contains(error_of([&] { run_directory(path, run_directory::mode::fresh); }), "--resume"));
  { run_directory again(path, run_directory::mode::resume); }
  REQUIRE(contains(error_of([&] { run_directory(dir.path() / "none", run_directory::mode::resume); }),
                   "holds no run to resume"));
  std::ofstream(dir.path() / "file") << "x";
  REQUIRE(contains(error_of([&] { run_directory(dir.path() / "file", run_directory::mode::fresh); }),
                   "is a file"));
  REQUIRE(contains(error_of([&] { run_directory(dir.path(), run_directory::mode::fresh); }),
                   "is not empty"));
  REQUIRE(contains(error_of([&] { run_directory("/proc/none", run_directory::mode::fresh); }),
                   "can't make this folder"));
}

TEST_CASE("a run directory in which nothing began isn't left behind") {
  scratch dir;
  { run_directory failed(dir.path() / "a", run_directory::mode::fresh); }
  REQUIRE_FALSE(fs::exists(dir.path() / "a"));
  fs::create_directory(dir.path() / "b"); // somebody else's folder stays
  { run_directory failed(dir.path() / "b", run_directory::mode::fresh); }
  REQUIRE(fs::exists(dir.path() / "b"));
  {
    run_directory begun(dir.path() / "c", run_directory::mode::fresh);
    begun.write_config("{}");
  }
  REQUIRE(fs::exists(dir.path() / "c" / "config.json"));
}

TEST_CASE("metrics: whole lines, rewound at a resume") {
  scratch dir;
  run_directory run(dir.path() / "run", run_directory::mode::fresh);
  REQUIRE(run.rewind_metrics(3).kept.empty());
  for (int step = 0; step < 10; ++step)
    run.append_metrics({{"step", step}, {"reward", step * 0.5}});
  std::ofstream(run.metrics_file(), std::ios::app) << R"({"step": 10, "rew)";
  REQUIRE(read_metrics(run.metrics_file()).size() == 10);
  const auto rewound = run.rewind_metrics(6);
  REQUIRE(rewound.kept.size() == 7);
  REQUIRE(rewound.dropped.size() == 3);
  run.append_metrics({{"step", 7}, {"note", "bad \xff byte"}});
  const auto lines = read_metrics(run.metrics_file());
  REQUIRE(lines.size() == 8);
  REQUIRE(lines.back()["step"] == 7);
}

TEST_CASE("metrics: damaged lines are left out, with a word on where, and gone after a resume") {
  scratch dir;
  run_directory run(dir.path() / "run", run_directory::mode::fresh);
  std::vector<std::string> said;
  log::set_screen([&](std::string_view line) { said.emplace_back(line); });
  run.append_metrics({{"step", 1}});
  std::ofstream(run.metrics_file(), std::ios::app) << "{\"step\": 2, \"re{\"step\": 3}\n[]\n";
  run.append_metrics({{"step", 4}});
  REQUIRE(read_metrics(run.metrics_file()).size() == 2);
  REQUIRE(said.size() == 1);
  REQUIRE(contains(said[0], run.metrics_file().string() + ":2: is no JSON object"));
  REQUIRE(contains(said[0], "the first of 2 such lines"));
  REQUIRE(run.rewind_metrics(4).kept.size() == 2);
  run.append_metrics({{"step", 5}});
  said.clear();
  const auto lines = read_metrics(run.metrics_file());
  log::set_screen({});
  REQUIRE(lines.size() == 3);
  REQUIRE(lines.back()["step"] == 5);
  REQUIRE(said.empty());
}

TEST_CASE("a fresh run path has the configuration's name and the time") {
  const auto path = fresh_run_path("conf/quickstart.json", 1717754400).string();
  REQUIRE(path.starts_with("runs/quickstart-20240607-"));
  REQUIRE(path.size() == std::string("runs/quickstart-20240607-120000").size());
}

TEST_CASE("the manual clock moves only when told") {
  manual_clock c(1000);
  REQUIRE(c.now() == 0);
  c.advance(1.5);
  REQUIRE(c.now() == 1.5);
  REQUIRE(c.wall() == 1001.5);
  real_clock r;
  const auto a = r.now();
  REQUIRE(r.now() >= a);
  REQUIRE(r.wall() > 1.6e9);
}

TEST_CASE("messages: a full disk stops nobody who has something to say") {
  std::vector<std::string> lines;
  log::set_screen([&](std::string_view line) { lines.emplace_back(line); });
  log::set_file("/dev/full");
  for (int i = 0; i < 3; ++i)
    REQUIRE_NOTHROW(log::warning("trainer", "the disk is full"));
  REQUIRE_NOTHROW(log::flush());
  log::set_screen({});
  log::set_file({});
  REQUIRE(std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
            return line.find("[log]") != line.npos && line.find("No space left") != line.npos;
          }) == 1);
}

TEST_CASE("messages: level, who, file, from many threads") {
  scratch dir;
  std::vector<std::string> lines;
  log::set_screen([&](std::string_view line) { lines.emplace_back(line); });
  log::set_file(dir.path() / "log.txt");
  log::debug("x", "not seen");
  log::warning("trainer", "step {} skipped");
  REQUIRE(lines.size() == 1);
  REQUIRE(contains(lines[0], "warning [trainer] step {} skipped\n"));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 50; ++i)
        log::info("t", "hello");
    });
  for (auto& t : threads)
    t.join();
  log::flush();
  log::set_screen({});
  log::set_file({});
  REQUIRE(lines.size() == 201);
  const auto file = read_file(dir.path() / "log.txt");
  REQUIRE(std::count(file.begin(), file.end(), '\n') == 201);
  REQUIRE(contains(error_of([&] { log::set_file(dir.path() / "none" / "\n" / "x"); }) + "can't write",
                   "can't write"));
}

TEST_CASE("a registry names the nearest, and refuses a second of the same name") {
  registry<std::function<int()>> r("reward");
  REQUIRE(contains(error_of([&] { (void) r.get("x", "reward.kind"); }), "none is registered"));
  r.add("numeric", "compares numbers", [] { return 1; });
  r.add("exact", "compares text", [] { return 2; });
  REQUIRE(r.get("exact", "reward.kind")() == 2);
  REQUIRE(error_of([&] { (void) r.get("numerc", "reward.kind"); })
          == "reward.kind: found \"numerc\", expected a reward among \"exact\", \"numeric\" (did "
             "you mean \"numeric\"?)");
  REQUIRE(contains(error_of([&] { r.add("exact", "", [] { return 3; }); }), "registered twice"));
  REQUIRE(!error_of([&] { r.add("", "", [] { return 3; }); }).empty());
  REQUIRE(r.names() == std::vector<std::string>{"exact", "numeric"});
}
