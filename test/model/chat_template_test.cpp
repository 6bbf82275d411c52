#include "runtime/error.hpp"
#include "runtime/model/chat_template.hpp"

#include <catch2/catch.hpp>

#include <fstream>
#include <random>

using namespace millrace;
using namespace millrace::model;
using json = nlohmann::ordered_json;

namespace {

std::string rendered(const std::string& text, const json& extra = json::object()) {
  const chat_source source{.text = text, .where = "T", .bos = "<s>", .eos = "</s>"};
  return chat_template(source).render(json::array(), true, extra);
}

std::string error_of(const std::string& text, const json& extra = json::object()) {
  try {
    rendered(text, extra);
  } catch (const user_error& e) {
    return e.what();
  }
  return "";
}

} // namespace

TEST_CASE("templates give what Jinja gives, as transformers sets it up") {
  std::ifstream in(std::string(MILLRACE_GOLDEN_DIR) + "/chat_templates.json");
  const auto golden = json::parse(in);
  std::size_t compared = 0;
  for (const auto& c : golden["cases"]) {
    const auto& given = golden["templates"][c["template"].get<std::string>()];
    const chat_source source{.text = given["text"], .where = c["template"], .bos = given["bos"],
                             .eos = given["eos"]};
    INFO(c.dump());
    std::string found;
    try {
      found = chat_template(source).render(c["messages"], c["add_generation_prompt"], c["extra"]);
    } catch (const user_error& e) {
      INFO(e.what());
      REQUIRE(c["expected"].is_null());
      continue;
    }
    REQUIRE_FALSE(c["expected"].is_null());
    REQUIRE(found == c["expected"].get<std::string>());
    ++compared;
  }
  REQUIRE(compared > 60);
}

TEST_CASE("what a template can't do is named with its line") {
  const auto names = [](const std::string& text, const std::string& what,
                        const json& extra = json::object()) {
    const auto e = error_of(text, extra);
    INFO(text << " gave: " << e);
    REQUIRE(e.find(what) != std::string::npos);
    REQUIRE(e.find("T, line ") == 0);
  };
  names("a\n{% macro f() %}{% endmacro %}", "line 2: {% macro %} is not supported");
  names("{{ x | sort }}", "the filter \"sort\" is not supported");
  names("{{ x is cheap }}", "the test \"cheap\" is not supported");
  names("{{ strftime_now('%Y') }}", "\"strftime_now\" can't be called here");
  names("{% if x %}", "{% endif %} is missing");
  names("{% for x in y %}{% endif %}", "is not supported");
  names("{{ 'a' + 1 }}", "don't go together");
  names("{{ x.y.z }}", "'y' is undefined", {{"x", json::object()}});
  names("{{ x.y }}", "'x' is undefined");
  names("{{ 'a", "never closed");
  names("{{ 1 ? 2 }}", "\"?\" is not expected");
  names("{{ [1, 2 }}", "");
  names("{{ 1 < 2 < 3 }}", "chained comparisons");
  names("{{ 1 // 0 }}", "division by zero");
  names("{{ range(10**9) }}", "range is too long");
  names("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "million");
  names("\n\n{{ raise_exception('no tools') }}", "line 3: the template refuses this: no tools");
  names("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}", "nested");
  names("{{ 1" + std::string(5000, '+') + "1 }}", "");
  std::string chain = "{{ 1";
  for (int i = 0; i < 5000; ++i)
    chain += " ~ 1";
  names(chain + " }}", "300 steps");
  REQUIRE_THROWS_AS(chat_template(chat_source{}), user_error);
}

TEST_CASE("any text is a template or refused") {
  const std::string parts[] = {"{{", "}}", "{%", "%}", "{#", "#}", "-", "if ", "for ", "x ", "in ",
                               "endif", "endfor", "else", "set ", "=", "'a'", "[", "]", "(", ")",
                               ":", "|", "trim", "is ", "defined", "not ", "1", ".", ",", "~", "+",
                               "\n", " ", "messages", "loop", "{", "}", "\"", "\xFF", "é"};
  const auto seed = 4242U;
  INFO("seed " << seed);
  std::mt19937 draw(seed);
  int fine = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (auto n = draw() % 24; n > 0; --n)
      text += parts[draw() % std::size(parts)];
    try {
      rendered(text, {{"x", {1, 2}}});
      ++fine;
    } catch (const user_error&) {
    }
  }
  REQUIRE(fine > 100);
}
