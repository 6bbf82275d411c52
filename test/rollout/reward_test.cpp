#include "rollout/reward.hpp"
#include "rollout/reward_parameters.hpp"

#include "runtime/error.hpp"

#include <catch2/catch.hpp>

#include <random>

using namespace millrace;
using nlohmann::json;

namespace {

verdict judge(const std::string& name, const json& params, const std::string& reference,
              const std::string& answer, finish_reason finish = finish_reason::stop) {
  return make_reward(name, params)->judge({0, "question", reference}, answer, finish);
}

bool numeric(const std::string& reference, const std::string& answer) {
  return judge("numeric", json::object(), reference, answer).correct;
}

bool exact(const json& params, const std::string& reference, const std::string& answer) {
  return judge("exact", params, reference, answer).correct;
}

bool format(const json& params, const std::string& answer) {
  return judge("format", params, "", answer).correct;
}

void refused(const std::string& name, const json& params, const std::string& text) {
  try {
    (void)make_reward(name, params);
  } catch (const user_error& e) {
    INFO(e.what());
    REQUIRE(std::string(e.what()).find(text) != std::string::npos);
    return;
  }
  FAIL("accepted " << params.dump());
}

} // namespace

TEST_CASE("numeric reward") {
  REQUIRE(numeric("12", "12"));
  REQUIRE(numeric("12", "8 9 10 11 12"));
  REQUIRE_FALSE(numeric("12", "12 13"));
  REQUIRE_FALSE(numeric("12", "-12"));
  REQUIRE_FALSE(numeric("12", ""));
  REQUIRE_FALSE(numeric("12", "twelve"));
  REQUIRE(numeric("1,250", "She keeps $1250."));
  REQUIRE(numeric("18", "16-3-4=9 eggs, 9*2=18.\n#### 18"));
  REQUIRE(numeric("18", "#### 18\nCheck: 9*2 is 18 and 3+4 is 7"));
  REQUIRE_FALSE(numeric("18", "18 it is\n#### nineteen")); // what it marks counts
  REQUIRE(numeric("\\frac{3}{4}", "thus \\boxed{0.75}"));
  REQUIRE(numeric("5", "\\boxed{x=5}"));
  REQUIRE_FALSE(numeric("5", "\\boxed{3, 5}"));
  REQUIRE(numeric("5", "I forgot to close \\boxed{5")); // marks nothing: the last number
  REQUIRE(numeric("25%", "a quarter, 0.25"));
  REQUIRE(numeric("#### 7", "7"));
  REQUIRE(numeric("She has 3 apples and 4 pears, so 7", "7"));
}

TEST_CASE("numeric reward: references that are no number are compared as text") {
  struct { const char *reference, *right, *wrong; } cases[]{
    {"(1,3)", "\\boxed{(1, 3)}", "3"},
    {"3\\sqrt{2}", "so \\boxed{3\\sqrt{2}}", "\\boxed{2}"},
    {"2x-5", "\\boxed{2x - 5}", "\\boxed{5}"},
    {"x+1", "\\boxed{x+1}.", "\\boxed{1}"},
    {"\\frac{\\pi}{4}", "\\boxed{\\dfrac{\\pi}{4}}", "\\boxed{4}"},
    {"x^2+y^2=4", "\\boxed{x^2 + y^2 = 4}", "\\boxed{4}"},
    {"10^{5}", "\\boxed{10^{5}}", "\\boxed{5}"},
    {"4\u03C0", "\\boxed{4\u03C0}", "4"},
    {"\\text{(C)}", "\\boxed{(C)}", "\\boxed{C}"},
    {"\\left(-\\infty, 2\\right)", "\\boxed{(-\\infty,2)}", "2"},
    {"Monday", "\\boxed{\\text{Monday}}", "1"},
  };
  for (const auto& c : cases) {
    INFO(c.reference);
    REQUIRE(numeric(c.reference, c.right));
    REQUIRE_FALSE(numeric(c.reference, c.wrong));
  }
}

TEST_CASE("numeric reward: numbers in TeX and with units") {
  for (const auto& [reference, answer] : std::vector<std::pair<const char*, const char*>>{
         {"\\frac12", "\\boxed{0.5}"}, {"\\dfrac{3}{4}", "\\boxed{\\frac34}"}, {"-\\frac{1}{2}", "-0.5"},
         {"90^\\circ", "\\boxed{90}"}, {"12\\text{ cm}", "\\boxed{12}"}, {"\\$5.50", "\\boxed{5.5}"},
         {"x=5", "\\boxed{5}"}, {"18 eggs", "18"}, {"50\\%", "0.5"}, {"6.02e23", "6.02e23"},
         {"1{,}000", "1000"}, {"\\frac{\\ 1}{2}", "\\boxed{\\frac{\\ 1}{2}}"}, {"$7$", "7"}, {"7.", "7"}}) {
    INFO(reference << " | " << answer);
    REQUIRE(numeric(reference, answer));
  }
}

TEST_CASE("numeric reward: what is paid, and why") {
  const json pay{{"correct", 2}, {"wrong", -1}, {"finished", true}};
  auto v = judge("numeric", pay, "3", "3");
  REQUIRE(v.reward == 2);
  REQUIRE(v.detail == "found 3, expected 3");
  v = judge("numeric", pay, "3", "4");
  REQUIRE(v.reward == -1);
  REQUIRE(v.detail == "found 4, expected 3");
  v = judge("numeric", pay, "3", "3", finish_reason::length);
  REQUIRE(v.reward == -1);
  REQUIRE_FALSE(v.correct);
  v = judge("numeric", pay, " ", "3");
  REQUIRE_FALSE(v.judged);
  REQUIRE_FALSE(v.correct);
  v = judge("numeric", pay, "no idea", "3");
  REQUIRE(v.detail == "expected, as text, noidea");
  REQUIRE_FALSE(v.correct);
  REQUIRE(judge("numeric", {{"tolerance", 0.1}}, "0.5", "0.55").correct);
}

TEST_CASE("exact reward") {
  REQUIRE(exact(json::object(), "Yes", " Yes\n"));
  REQUIRE_FALSE(exact(json::object(), "Yes", "yes"));
  REQUIRE(exact({{"ignore_case", true}}, "Yes", "YES"));
  REQUIRE_FALSE(exact({{"ignore_case", true}}, "Yes", "YE"));
  REQUIRE_FALSE(exact({{"trim", false}}, "Yes", "Yes "));
  REQUIRE(exact({{"trim", false}}, "", ""));
  REQUIRE_FALSE(exact(json::object(), "B", "so it is #### B"));
  REQUIRE(exact({{"marked", true}}, "B", "so it is #### B"));
  REQUIRE(exact({{"marked", true}}, "x\n#### B", "B"));
}

TEST_CASE("format reward") {
  const json number{{"shape", "number"}};
  REQUIRE(format(number, " -1,200.5 "));
  REQUIRE(format(number, "50%"));
  REQUIRE_FALSE(format(number, "12 13"));
  REQUIRE_FALSE(format(number, "12 apples"));
  REQUIRE_FALSE(format(number, ""));
  const json marked{{"shape", "marked"}};
  REQUIRE(format(marked, "so\n#### 4"));
  REQUIRE(format(marked, "\\boxed{4}"));
  REQUIRE_FALSE(format(marked, "####"));
  REQUIRE_FALSE(format(marked, "4"));
  const json thinking{{"shape", "thinking"}};
  REQUIRE(format(thinking, "<think>well</think> 4"));
  REQUIRE_FALSE(format(thinking, "<think>well</think> "));
  REQUIRE_FALSE(format(thinking, "<think>well 4"));
  REQUIRE_FALSE(format(thinking, "4 <think>well</think> 4"));
  REQUIRE_FALSE(format(thinking, "<think>a</think><think>b</think> 4"));
  REQUIRE_FALSE(judge("format", marked, "", "#### 4", finish_reason::length).correct);
}

TEST_CASE("weighted reward") {
  const json params{{"parts",
                     {{{"kind", "numeric"}},
                      {{"kind", "format"}, {"weight", 0.25}, {"params", {{"shape", "marked"}}}}}}};
  auto v = judge("weighted", params, "4", "#### 4");
  REQUIRE(v.reward == 1.25F);
  REQUIRE(v.correct);
  v = judge("weighted", params, "4", "#### 5");
  REQUIRE(v.reward == 0.25F);
  REQUIRE_FALSE(v.correct);
  REQUIRE(judge("weighted", params, "4", "4").reward == 1.0F);
  REQUIRE_FALSE(judge("weighted", params, "", "4").judged);
}

TEST_CASE("rewards: as the configuration says") {
  reward_settings s;
  s.correct = 3;
  s.wrong = -2;
  const prompt p{0, "q", "4"};
  REQUIRE(make_reward(s)->judge(p, "4", finish_reason::stop).reward == 3);
  REQUIRE(make_reward(s)->judge(p, "5", finish_reason::stop).reward == -2);
  s.params = {{"wrong", -7}};
  REQUIRE(make_reward(s)->judge(p, "5", finish_reason::stop).reward == -7);
  s.kind = "weighted";
  s.params = {{"parts", {{{"kind", "exact"}}}}};
  REQUIRE(make_reward(s)->judge(p, "4", finish_reason::stop).reward == 1);
}

TEST_CASE("rewards: wrong names and parameters are told with their path") {
  refused("numerical", json::object(), "reward.kind: found \"numerical\"");
  refused("numeric", {{"tolerence", 1}}, "reward.params.tolerence");
  refused("numeric", {{"tolerance", -1}}, "reward.params.tolerance");
  refused("numeric", {{"correct", "yes"}}, "reward.params.correct");
  refused("exact", json::array(), "reward.params");
  refused("format", {{"shape", "round"}}, "reward.params.shape");
  refused("weighted", json::object(), "reward.params.parts: found none, expected");
  refused("weighted", {{"prats", json::array()}}, "reward.params.prats");
  refused("weighted", {{"parts", 3}}, "reward.params.parts");
  refused("weighted", {{"parts", {{{"kind", "nemuric"}}}}}, "reward.params.parts.0.kind");
  refused("weighted", {{"parts", {{{"kind", "exact"}, {"params", {{"trin", 1}}}}}}},
          "reward.params.parts.0.params.trin");
}

TEST_CASE("rewards: each built-in one tells its parameters, with their meaning") {
  for (const auto& name : rewards().names()) {
    INFO(name);
    const auto parameters = reward_parameters(name);
    REQUIRE(!parameters.empty());
    for (const auto& p : parameters)
      REQUIRE((!p.name.empty() && !p.kind.empty() && !p.help.empty()));
  }
  REQUIRE(reward_parameters("a plugin's").empty());
}

TEST_CASE("rewards: no answer makes them throw, and all pay a finite amount") {
  const json weighted{{"parts", {{{"kind", "numeric"}}, {{"kind", "exact"}}}}};
  const std::vector<std::pair<std::string, json>> all{
    {"numeric", json::object()}, {"exact", {{"marked", true}}}, {"format", {{"shape", "number"}}},
    {"format", {{"shape", "thinking"}}}, {"weighted", weighted}};
  constexpr std::string_view pieces = "0123456789+-.,/%$#{} \\boxed\xFF\0<think>";
  for (const auto& [name, params] : all) {
    const auto r = make_reward(name, params);
    for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
      INFO(name << " seed " << seed);
      std::mt19937_64 random(seed);
      std::string answer;
      for (auto n = random() % 80; n > 0; --n)
        answer += pieces[random() % pieces.size()];
      const auto v = r->judge({0, "", seed % 2 == 0 ? "7" : answer}, answer, finish_reason::stop);
      REQUIRE((v.reward >= 0 && v.reward <= 2));
      if (seed % 2 == 1 && name == "exact")
        REQUIRE(v.correct);
    }
  }
}
