#include "rollout/jsonl_source.hpp"

#include "runtime/error.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>

using namespace millrace;

namespace {

const std::string golden = std::string(MILLRACE_GOLDEN_DIR) + "/prompts/";

/// A file with this content, gone at the end of the test.
class temporary_file {
public:
  explicit temporary_file(const std::string& content)
    : path_((std::filesystem::temp_directory_path()
             / ("millrace-jsonl-" + std::to_string(getpid()) + "-" + std::to_string(count_++)))
              .string()) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~temporary_file() { std::filesystem::remove(path_); }
  [[nodiscard]] const std::string& path() const { return path_; }

private:
  static inline int count_ = 0;
  std::string path_;
};

data_settings from(const std::string& file, double held_out = 0) {
  data_settings d;
  d.source = "jsonl";
  d.file = file;
  d.held_out = held_out;
  return d;
}

std::string line(const std::string& question, const std::string& answer = "#### 1") {
  return nlohmann::json{{"question", question}, {"answer", answer}}.dump() + "\n";
}

/// The text of the error that this content causes.
std::string error_of(const std::string& content, data_settings options = {}) {
  temporary_file f(content);
  options.file = f.path();
  options.held_out = 0;
  try {
    jsonl_source source(options, 0);
  } catch (const user_error& e) {
    return e.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

/// Prompts of one epoch by text.
std::map<std::string, prompt> epoch(const jsonl_source& s) {
  std::map<std::string, prompt> all;
  for (std::int64_t i = 0; i < s.epoch_size(); ++i)
    all[s.at(i).text] = s.at(i);
  return all;
}

} // namespace

TEST_CASE("jsonl: GSM8K's form as it is") {
  const jsonl_source s(from(golden + "gsm8k_form.jsonl"), 1);
  REQUIRE(s.question_field() == "question");
  REQUIRE(s.epoch_size() == 5);
  const auto all = epoch(s);
  REQUIRE(all.size() == 4); // one question stands there twice
  const auto& apples = all.at(
    "Ada has 3 baskets with 450 apples each and gives away 100 apples. How many are left?");
  REQUIRE(apples.answer == "1,250");
  REQUIRE(s.demonstration(apples)
          == "There are 3*450 = 1350 apples.\nShe keeps 1350-100 = 1250.\n#### 1,250");
  REQUIRE(has(s.alphabet(), "ü"));
}

TEST_CASE("jsonl: MATH's form as it is") {
  const jsonl_source s(from(golden + "math_form.jsonl"), 1);
  REQUIRE(s.question_field() == "problem");
  REQUIRE(s.answer_field() == "solution");
  const auto all = epoch(s);
  REQUIRE(all.at("How many primes are below 10?").answer == "4");
  REQUIRE(all.at("What is $\\frac{1}{2}+\\frac{1}{4}$?").answer == "\\frac{3}{4}");
  REQUIRE(all.at("List the set of solutions of $x^2=x$.").answer == "\\{0, 1\\}");
  temporary_file with_answer("{\"problem\": \"p\", \"solution\": \"it is 6\", \"answer\": \"6\"}");
  const jsonl_source t(from(with_answer.path()), 1);
  REQUIRE(t.at(0).answer == "6");
  REQUIRE(t.demonstration(t.at(0)) == "it is 6");
}

TEST_CASE("jsonl: own field names, a template, numbers as answers") {
  temporary_file f("{\"q\": \"2+2\", \"a\": 4}\n{\"q\": \"1/2\", \"a\": 0.5}");
  auto options = from(f.path());
  options.question_field = "q";
  options.answer_field = "a";
  options.prompt_template = "Q: {question}\n({question}) A:";
  options.shuffle = false;
  const jsonl_source s(options, 1);
  REQUIRE(s.at(0).text == "Q: 2+2\n(2+2) A:");
  REQUIRE(s.at(0).answer == "4");
  REQUIRE(s.at(1).answer == "0.5");
  REQUIRE(s.at(2).text == s.at(0).text);
  options.answer_field = "";
  REQUIRE(jsonl_source(options, 1).at(0).answer.empty());
}

TEST_CASE("jsonl: byte-order mark, CR LF, empty lines, no line end at the end") {
  temporary_file f("\xEF\xBB\xBF" + line("a") + "\r\n  \n"
                   + "{\"question\": \"b\", \"answer\": \"2\"}\r\n" + "{\"question\": \"c\", \"answer\": \"3\"}");
  auto options = from(f.path());
  options.shuffle = false;
  const jsonl_source s(options, 0);
  REQUIRE(s.epoch_size() == 3);
  REQUIRE(s.at(1).answer == "2");
  REQUIRE(s.at(2).answer == "3");
}

TEST_CASE("jsonl: very long lines") {
  const std::string longest(3'000'000, 'x');
  temporary_file f(line("a") + line(longest) + line("b"));
  auto options = from(f.path());
  options.shuffle = false;
  const jsonl_source s(options, 0);
  REQUIRE(s.at(1).text == longest);
  REQUIRE(s.at(2).text == "b");
  // Not even a line: refused before memory is full of it.
  REQUIRE(has(error_of(std::string((64 << 20) + 10, 'x')), ":1: is longer than"));
}

TEST_CASE("jsonl: errors name file, line, what was found and what was expected") {
  const auto good = line("a");
  REQUIRE(has(error_of(""), "is empty, expected"));
  REQUIRE(has(error_of("\n\r\n \n"), "is empty, expected"));
  REQUIRE(has(error_of("\xEF\xBB\xBF"), "is empty, expected"));
  const auto broken = error_of(good + "\n" + "{\"question\": \"b\", \"answer\n" + good);
  REQUIRE(has(broken, ":3: found \"{\"question\": \"b\""));
  REQUIRE(has(broken, "expected one JSON object a line"));
  REQUIRE_FALSE(has(broken, "cut off"));
  REQUIRE(has(error_of(good + "{\"question\": \"b\", \"ans"), "may be cut off"));
  REQUIRE(has(error_of("[1, 2]\n"), ":1: found a list, expected one JSON object"));
  REQUIRE(has(error_of("{} {}\n"), ":1: found"));
  REQUIRE(has(error_of(good + "{\"question\": \"\xFF\xFE\"}\n"), ":2: found"));
  REQUIRE(has(error_of(good + "{\"quesiton\": \"b\"}\n"), ":2: has no field \"question\""));
  REQUIRE(has(error_of("{\"quesiton\": \"b\"}\n"), "did you mean \"quesiton\""));
  REQUIRE(has(error_of("{\"text\": \"b\"}\n"), "found \"text\""));
  REQUIRE(has(error_of("{\"question\": null, \"answer\": \"\"}\n"), "found null, expected text"));
  REQUIRE(has(error_of("{\"question\": \" \", \"answer\": \"\"}\n"),
              "is empty, expected a question"));
  data_settings no_place;
  no_place.prompt_template = "Answer:";
  REQUIRE(has(error_of(good, no_place), "data.template"));
  auto missing = from("/nowhere/at/all.jsonl");
  REQUIRE_THROWS_AS(jsonl_source(missing, 0), user_error);
  REQUIRE_THROWS_AS(jsonl_source(from(golden), 0), user_error); // a folder
  REQUIRE_THROWS_AS(jsonl_source(from(""), 0), user_error);
}

TEST_CASE("jsonl: held-out questions are never trained on, also when they stand twice") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    std::string content;
    std::set<std::string> distinct;
    for (int i = 0; i < 60; ++i) {
      const auto q = std::to_string(random() % 40);
      distinct.insert(q);
      content += line(q);
    }
    temporary_file f(content);
    const jsonl_source s(from(f.path(), 10), seed);
    REQUIRE(s.held_out_size() == 10);
    std::set<std::string> kept, trained;
    for (std::int64_t i = 0; i < 10; ++i)
      REQUIRE(kept.insert(s.held_out(i).text).second);
    for (std::int64_t i = 0; i < s.epoch_size(); ++i) {
      trained.insert(s.at(i).text);
      REQUIRE_FALSE(kept.contains(s.at(i).text));
    }
    REQUIRE(kept.size() + trained.size() == distinct.size());
    REQUIRE(jsonl_source(from(f.path(), 0.25), seed).held_out_size()
            == static_cast<std::int64_t>(distinct.size() / 4));
    REQUIRE_THROWS_AS(jsonl_source(from(f.path(), double(distinct.size())), seed), user_error);
  }
}

TEST_CASE("jsonl: each epoch in its own order, the same again from a cursor") {
  std::string content;
  for (int i = 0; i < 30; ++i)
    content += line(std::to_string(i));
  temporary_file f(content);
  jsonl_source a(from(f.path(), 5), 9), b(from(f.path(), 5), 9);
  std::vector<std::string> first, second;
  for (int i = 0; i < 25; ++i)
    first.push_back(a.next().text);
  const auto saved = a.cursor();
  for (int i = 0; i < 25; ++i)
    second.push_back(a.next().text);
  REQUIRE(first != second);
  REQUIRE(std::set<std::string>(first.begin(), first.end())
          == std::set<std::string>(second.begin(), second.end()));
  b.seek(saved);
  REQUIRE(b.next().text == second[0]);
  // The file has changed: the cursor says nothing about it.
  std::ofstream(f.path(), std::ios::app) << line("more");
  jsonl_source changed(from(f.path(), 5), 9);
  REQUIRE_THROWS_AS(changed.seek(saved), user_error);
}

TEST_CASE("jsonl: any bytes are read or refused, and never worse") {
  const auto base = line("a \\ \" {question}", "x\n#### 3") + line("b") + line("c");
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    auto bytes = base;
    for (auto n = 1 + random() % 4; n > 0; --n) {
      const auto at = random() % bytes.size();
      switch (random() % 3) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes.erase(at, random() % 5); break;
        default: bytes.insert(at, 1, "{}[]\",:\n\\\0"[random() % 10]); break;
      }
      if (bytes.empty())
        bytes = "x";
    }
    temporary_file f(bytes);
    try {
      const jsonl_source s(from(f.path()), 0);
      REQUIRE(s.epoch_size() > 0);
      REQUIRE_FALSE(s.at(0).text.empty());
    } catch (const user_error& e) {
      REQUIRE(has(e.what(), f.path()));
    }
  }
}

TEST_CASE("prompt sources by name") {
  data_settings d;
  REQUIRE(make_prompt_source(d, 1)->held_out_size() == 200);
  REQUIRE(make_prompt_source(from(golden + "math_form.jsonl", 1), 1)->held_out_size() == 1);
  d.source = "arithmetics";
  REQUIRE_THROWS_AS(make_prompt_source(d, 1), user_error);
}
