#include "runtime/plugins/child_pool.hpp"
#include "rollout/program_reward.hpp"
#include "runtime/error.hpp"
#include "runtime/readable_text.hpp"
#include "runtime/scratch_folder.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

using namespace millrace;
using plugins::child_failure;
using plugins::child_pool;
using Catch::Matchers::Contains;

namespace {

std::vector<std::string> shell(const std::string& script) { return {"/bin/sh", "-c", script}; }

std::string failure(child_pool& pool, const std::string& line) {
  try {
    pool.ask(line);
  } catch (const child_failure& e) {
    return e.what();
  }
  return "it answered";
}

} // namespace

TEST_CASE("child pool: answers line by line, and starts a process once") {
  child_pool pool({.command = {"cat"}});
  const std::string words[] = {"one", "", "two words", std::string(300'000, 'x')};
  for (const auto& w : words)
    REQUIRE(pool.ask(w) == w);
  REQUIRE(pool.started() == 1);
}

TEST_CASE("child pool: a process that dies, is late or is not there is told apart") {
  child_pool dying({.command = shell("read x; kill -SEGV $$")});
  REQUIRE_THAT(failure(dying, "x"), Contains("killed by signal 11"));
  child_pool leaving({.command = shell("read x; exit 7")});
  REQUIRE_THAT(failure(leaving, "x"), Contains("exited with status 7"));
  child_pool late({.command = shell("read x; sleep 60"), .timeout_s = 0.2});
  REQUIRE_THAT(failure(late, "x"), Contains("no answer within 0.2 s"));
  child_pool none({.command = {"/no/such/program"}});
  REQUIRE_THAT(failure(none, "x"), Contains("No such file"));
}

TEST_CASE("child pool: after a failure the next answer is right, and not an old one") {
  child_pool pool({.command = shell("while read x; do case $x in late) sleep 60;; die) kill -9 $$;; "
                                    "*) echo $x;; esac; done"),
                   .timeout_s = 5});
  REQUIRE(pool.ask("a") == "a");
  REQUIRE_THAT(failure(pool, "late"), Contains("no answer"));
  REQUIRE(pool.ask("b") == "b");
  REQUIRE_THAT(failure(pool, "die"), !Contains("it answered"));
  REQUIRE(pool.ask("c") == "c");
  REQUIRE(pool.started() == 3);
}

TEST_CASE("child pool: one that hangs holds up nobody else") {
  const scratch_folder folder("millrace-test");
  const auto gate = folder.path() / "gate";
  child_pool pool({.command = shell("while read x; do [ $x = late ] && while [ ! -e " + gate.string()
                                    + " ]; do sleep 0.05; done; echo $x; done"),
                   .size = 2, .timeout_s = test::patience_s});
  std::thread stuck([&] { failure(pool, "late"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  for (int i = 0; i < 20; ++i)
    REQUIRE(pool.ask(std::to_string(i)) == std::to_string(i));
  std::ofstream(gate) << "open";
  stuck.join();
}

TEST_CASE("child pool: an answer may be so long and no longer") {
  child_pool pool({.command = {"cat"}, .longest_answer = 100'000});
  REQUIRE(pool.ask(std::string(100'000, 'x')).size() == 100'000);
  REQUIRE_THAT(failure(pool, std::string(100'001, 'x')), Contains("longer than 100000 bytes"));
  REQUIRE(pool.ask("a") == "a");
}

TEST_CASE("child pool: one that floods is stopped within its time") {
  const auto quick = [](const std::string& script, plugins::child_pool_options options) {
    options.command = shell(script);
    child_pool pool(options);
    return failure(pool, "x");
  };
  for (const auto* flood : {"read x; tr '\\0' x < /dev/zero", "tr '\\0' x < /dev/zero",
                            "read x; head -c 200000000 /dev/zero; echo; read x"})
    REQUIRE_THAT(quick(flood, {.timeout_s = 20}), Contains("longer than 1048576 bytes"));
  // However long it may be, the time counts.
  REQUIRE_THAT(quick("read x; tr '\\0' x < /dev/zero",
                     {.timeout_s = 0.3, .longest_answer = std::size_t{1} << 40}),
               Contains("no answer within 0.3 s"));
}

TEST_CASE("child pool: one that always dies is not started again and again") {
  child_pool pool({.command = {"false"}, .timeout_s = 0.5, .backoff_s = 0.2, .max_backoff_s = 5});
  const auto began = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - began < std::chrono::milliseconds(1500))
    REQUIRE(failure(pool, "x") != "it answered");
  REQUIRE(pool.started() < 8);
}

TEST_CASE("program reward: verdicts and failures of an external program") {
  const nlohmann::json params{
    {"command", shell("while read line; do case $line in *'\"answer\":\"good\"'*) "
                      "echo '{\"reward\": 0.5, \"detail\": \"fine\"}';; *'\"bad\"'*) echo nonsense;; "
                      "*'\"sorry\"'*) echo '{\"error\": \"no way to tell\"}';; "
                      "*) echo '{\"reward\": 1, \"correct\": false}';; esac; done")},
    {"processes", 1}};
  auto judge = make_reward("program", params);
  auto v = judge->judge({1, "q", "a"}, "good", finish_reason::stop);
  REQUIRE(v.failure.empty());
  REQUIRE(v.reward == 0.5F);
  REQUIRE(v.correct);
  REQUIRE(v.detail == "fine");
  REQUIRE(!judge->judge({1, "q", "a"}, "other", finish_reason::stop).correct);
  REQUIRE_THAT(judge->judge({1, "q", "a"}, "bad", finish_reason::stop).failure,
               Contains("program /bin/sh: answered \"nonsense\""));
  REQUIRE_THAT(judge->judge({1, "q", "a"}, "sorry", finish_reason::stop).failure,
               Contains("no way to tell"));
  // What isn't text must not break the line.
  REQUIRE(judge->judge({1, "q", "a"}, "\xff\n\0x", finish_reason::length).failure.empty());
  REQUIRE_THROWS_WITH(make_reward("program", nlohmann::json::object()),
                      Contains("reward.params.command"));
  // What isn't there is told before a run in which every answer would fail.
  for (const auto* none : {"/nonexistent/judge", "no-such-judge-anywhere"})
    REQUIRE_THROWS_WITH(make_reward("program", {{"command", {none}}}),
                        Contains("which is no program here"));
}

TEST_CASE("program reward: a program that writes no text fails its answer, with a text") {
  for (const auto* line : {"\\377\\376\\000", "{\"error\": \"a\\\\u001b[31mb\"}",
                           "{\"reward\": \"\\033[2J\\377\"}"}) {
    const nlohmann::json params{
      {"command", shell("while read x; do printf '" + std::string(line) + "\\n'; done")}};
    const auto v = make_reward("program", params)->judge({1, "q", "a"}, "x", finish_reason::stop);
    INFO(line);
    REQUIRE(!v.failure.empty());
    REQUIRE(!v.judged);
    REQUIRE_NOTHROW(nlohmann::json(v.failure).dump());
    REQUIRE(std::none_of(v.failure.begin(), v.failure.end(),
                         [](unsigned char c) { return c < 0x20 || c == 0x7F; }));
  }
}

TEST_CASE("what a program wrote becomes readable, whatever it is") {
  REQUIRE(readable("plain, \"quoted\" \xC3\xA9") == "plain, \"quoted\" \xC3\xA9");
  REQUIRE(readable(std::string_view("a\xFF\0\n\x7F\xC2\x9B" "b", 8))
          == "a\xEF\xBF\xBD    b");
  REQUIRE(readable("").empty());
  REQUIRE(readable(std::string(301, 'x')) == std::string(300, 'x') + "...");
  for (std::size_t longest = 0; longest < 8; ++longest) // never within a character
    REQUIRE(readable("\xE2\x82\xAC\xF0\x9F\x98\x80\xC3\xA9", longest).find("\xEF\xBF\xBD")
            == std::string::npos);
}
