#include "rollout/plugin_reward.hpp"
#include "rollout/plugin_source.hpp"
#include "runtime/config/config.hpp"
#include "runtime/error.hpp"
#include "runtime/plugins/plugin.hpp"
#include "runtime/plugins/plugin_host.hpp"

#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>

using namespace millrace;
using Catch::Matchers::Contains;

namespace {

std::string built(const std::string& name) { return PLUGINS "/lib" + name + ".so"; }

std::string refusal(const std::string& file) {
  try {
    static_cast<void>(plugins::load(file));
  } catch (const user_error& e) {
    return e.what();
  }
  return "it was loaded";
}

const plugins::loaded_plugin& throwing() {
  static const auto p = [] {
    auto all = plugins::load(built("throwing"));
    add_plugin_rewards(all);
    add_plugin_sources(all);
    return all;
  }();
  return p;
}

std::string text_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const user_error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

} // namespace

TEST_CASE("plugins: what can't be loaded is refused by the file's name, with the reason") {
  REQUIRE_THAT(refusal("nowhere.so"), Contains("plugin nowhere.so: there is no such file"));
  const auto garbage = std::filesystem::temp_directory_path() / "millrace-garbage.so";
  std::ofstream(garbage) << "not a library";
  REQUIRE_THAT(refusal(garbage), Contains("is not a shared library"));
  std::ofstream(garbage) << "\177ELF and then nothing of the kind";
  REQUIRE_THAT(refusal(garbage), Contains("can't be loaded"));
  std::filesystem::remove(garbage);
  REQUIRE_THAT(refusal(built("no_entry")), Contains("no symbol millrace_plugin_entry"));
  REQUIRE_THAT(refusal(built("unresolved")), Contains("function_that_is_nowhere"));
  REQUIRE_THAT(refusal(built("old_abi")), Contains("version 99 of the plugin interface"));
  REQUIRE_THAT(refusal(built("other_library")), Contains("was built with another C++ library"));
  REQUIRE_THAT(refusal(built("empty")), Contains("registers nothing"));
  REQUIRE_THAT(refusal(built("twice")), Contains("registers the reward \"same\" twice"));
}

TEST_CASE("plugins: what their code throws is told with plugin, kind and name") {
  throwing();
  REQUIRE_THAT(text_of([] { static_cast<void>(make_reward("factory_throws")); }),
               Contains("libthrowing.so: reward \"factory_throws\": its factory threw: an exception "
                        "of type int"));
  REQUIRE_THAT(text_of([] { static_cast<void>(make_reward("factory_gives_nothing")); }), Contains("made nothing"));
  auto judge = make_reward("judge_throws");
  REQUIRE_THAT(judge->judge({}, "x", finish_reason::stop).failure,
               Contains("reward \"judge_throws\": judge() threw: an exception of type own_type"));
  data_settings data;
  data.source = "at_throws";
  auto source = make_prompt_source(data, 1);
  REQUIRE_THAT(text_of([&] { source->next(); }),
               Contains("prompt source \"at_throws\": at() threw: not today"));
}

TEST_CASE("plugins: a name that is taken is refused") {
  throwing();
  REQUIRE_THAT(text_of([] { add_plugin_rewards(throwing()); }), Contains("registered twice"));
}

TEST_CASE("plugins: an isolated reward may do what it likes") {
  const auto p = plugins::describe_isolated(built("crashing"));
  REQUIRE(p.entries().size() == 1);
  REQUIRE(p.entries()[0].help == "Crashes when the answer says so");
  add_isolated_rewards(p, "{}", 2, 2);
  auto judge = make_reward("crashing");
  const prompt q{7, "1+1=", "2"};
  const auto says = [&](const char* answer) { return judge->judge(q, answer, finish_reason::stop); };
  REQUIRE(says("2").correct);
  REQUIRE_THAT(says("segfault").failure, Contains("libcrashing.so: reward \"crashing\": its process "
                                                  "was killed by signal 11"));
  REQUIRE(says("2").correct);
  REQUIRE_THAT(says("abort").failure, Contains("signal 6"));
  REQUIRE_THAT(says("exit").failure, Contains("exited with status 3"));
  REQUIRE_THAT(says("throw").failure, Contains("judge() threw: no opinion"));
  REQUIRE_THAT(says("nan").failure, Contains("not finite"));
  REQUIRE_THAT(says("hang").failure, Contains("no answer within 2 s"));
  REQUIRE(says("2").correct);
  REQUIRE(!says("3").correct);
  REQUIRE_THAT(text_of([] { static_cast<void>(make_reward("crashing", {{"refuse", true}})); }),
               Contains("reward.params.refuse: found true, expected false"));
  REQUIRE_THAT(text_of([] { static_cast<void>(make_reward("crashing", {{"refuze", true}})); }),
               Contains("reward.params.refuze: unknown key (did you mean \"refuse\"?)"));
}

TEST_CASE("plugins: what can't be isolated is refused") {
  REQUIRE_THAT(text_of([] { static_cast<void>(plugins::describe_isolated(built("actor"))); }),
               Contains("registers the actor \"duplicates\", and only rewards"));
  REQUIRE_THAT(text_of([] { static_cast<void>(plugins::describe_isolated(built("old_abi"))); }),
               Contains("version 99"));
}

TEST_CASE("plugins: the configuration names them, and says what is wrong") {
  const auto s = parse_settings(R"({"plugins": [{"path": "a.so", "isolated": true,
    "config": {"x": 1}}], "actors": [{"kind": "duplicates", "params": {"share": 0.5}}],
    "rollout": {"environment": {"name": "calculator"}}, "reward": {"kind": "environment"}})", "here");
  REQUIRE(s.plugins.size() == 1);
  REQUIRE(s.plugins[0].isolated);
  REQUIRE(s.plugins[0].config["x"] == 1);
  REQUIRE(s.actors[0].params["share"] == 0.5);
  REQUIRE(s.rollout.environment.name == "calculator");
  REQUIRE_THAT(text_of([] { static_cast<void>(parse_settings(R"({"plugins": [{"file": 1}]})", "x")); }),
               Contains("plugins[0].file: unknown key"));
}
