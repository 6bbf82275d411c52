#include "runtime/config/config.hpp"
#include "runtime/config/describe.hpp"
#include "runtime/nearest.hpp"

#include <catch2/catch.hpp>

#include <cmath>
#include <fstream>
#include <random>

using namespace millrace;

namespace {

std::string error_of(const std::string& text, const std::vector<std::string>& sets = {}) {
  try {
    (void) parse_settings(text, "my.json", sets);
  } catch (const user_error& e) {
    return e.what();
  }
  return {};
}

bool has(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("an empty object has the defaults, and they agree with each other") {
  const auto s = parse_settings("{}", "my.json");
  REQUIRE(s.rollout.eta == settings{}.rollout.eta);
  REQUIRE(contradictions(settings{}).empty());
}

TEST_CASE("every default lies in its own range, and every option has a meaning") {
  settings s;
  const auto list = options_of(s);
  REQUIRE(list.options().size() > 70);
  for (const auto& o : list.options()) {
    INFO(o.path << " = " << o.value().dump());
    REQUIRE(o.assign(o.value()) == "");
    REQUIRE(o.help.size() > 4);
  }
}

TEST_CASE("settings survive writing and reading, with every option changed") {
  settings a;
  const auto list = options_of(a);
  std::mt19937_64 random(7);
  for (const auto& o : list.options()) {
    if (std::holds_alternative<std::string*>(o.target)) {
      (void) o.assign("x\"\n{question}é");
    } else if (const auto* choice = std::get_if<choice_field>(&o.target)) {
      (void) o.assign(choice->names[random() % choice->names.size()]);
    } else if (auto* const* flag = std::get_if<bool*>(&o.target)) {
      **flag = random() % 2;
    } else if (std::holds_alternative<nlohmann::json*>(o.target)) {
      (void) o.assign({{"k", 1.5}});
    } else if (std::isfinite(o.range.low) && std::isfinite(o.range.high)) {
      const bool real = o.type_name() == "number";
      const auto x = o.range.low + (o.range.high - o.range.low) * double(random() % 1000) / 1001.0;
      if (real)
        (void) o.assign(x);
      else
        (void) o.assign(std::int64_t(x));
    }
  }
  settings b;
  problem_list problems("x");
  read_options(options_of(b), parse_json(resolved_json(a), "x"), problems);
  for (const auto& t : problems.texts())
    FAIL(t);
  REQUIRE(resolved_json(a) == resolved_json(b));
  REQUIRE(a.sampling.top_p == b.sampling.top_p);
}

TEST_CASE("a float is written as it was read") {
  const auto s = parse_settings(R"({"sampling": {"top_p": 0.95}})", "x");
  REQUIRE(s.sampling.top_p == 0.95F);
  REQUIRE(has(resolved_json(s), "\"top_p\": 0.95,"));
}

TEST_CASE("the largest seed is kept exactly") {
  const auto s = parse_settings(R"({"seed": 18446744073709551615})", "x");
  REQUIRE(s.seed == 18446744073709551615ULL);
  REQUIRE(has(resolved_json(s), "18446744073709551615"));
  REQUIRE(has(error_of(R"({"seed": -1})"), "my.json: seed: found -1, expected an integer"));
}

TEST_CASE("comments are allowed") {
  const auto s = parse_settings("// about\n{ /* η */ \"rollout\": {\"eta\": 4} } // end\n", "x");
  REQUIRE(s.rollout.eta == 4);
}

TEST_CASE("a wrong value is told with path, found, expected") {
  CHECK(error_of(R"({"rollout": {"eta": -1}})")
        == "my.json: rollout.eta: found -1, expected an integer, 0 to 1024");
  CHECK(error_of(R"({"rollout": {"eta": 1.5}})")
        == "my.json: rollout.eta: found 1.5, expected an integer, 0 to 1024");
  CHECK(error_of(R"({"rollout": {"eta": "2"}})")
        == "my.json: rollout.eta: found \"2\", expected an integer, 0 to 1024");
  CHECK(error_of(R"({"rollout": {"eta": 99999999999999999999}})").find("rollout.eta: found") != std::string::npos);
  CHECK(error_of(R"({"sampling": {"top_p": 0}})")
        == "my.json: sampling.top_p: found 0, expected a number, above 0 and at most 1");
  CHECK(error_of(R"({"deterministic": 1})")
        == "my.json: deterministic: found 1, expected a boolean");
  CHECK(error_of(R"({"rollout": {"over_bound": "maks"}})")
        == "my.json: rollout.over_bound: found \"maks\", expected one of \"mask\", \"drop\", "
           "\"wait\" (did you mean \"mask\"?)");
  CHECK(has(error_of(R"({"rollout": 3})"), "my.json: rollout: found 3, expected an object with \"eta\""));
  CHECK(has(error_of("[]"), "my.json: found a list, expected an object with \"seed\""));
  CHECK(has(error_of(R"({"algorithm": {"loss": {"params": []}}})"),
            "algorithm.loss.params: found a list, expected an object"));
  CHECK(has(error_of(R"({"trainer": {"lr": null}})"), "trainer.lr: found null, expected a number, 0 to 10"));
}

TEST_CASE("whole numbers may be written with an exponent") {
  REQUIRE(parse_settings(R"({"run": {"steps": 1e3}})", "x").run.steps == 1000);
  REQUIRE(has(error_of(R"({"run": {"steps": 1e30}})"), "run.steps: found 1e+30"));
}

TEST_CASE("an unknown key is told with the nearest valid one") {
  CHECK(error_of(R"({"rollout": {"etaa": 1}})")
        == "my.json: rollout.etaa: unknown key (did you mean \"rollout.eta\"?)");
  CHECK(has(error_of(R"({"eta": 1})"), "my.json: eta: unknown key (did you mean"));
  CHECK(has(error_of(R"({"trainer": {"batch_size": 8}})"), "(did you mean \"rollout.batch_size\"?)"));
  CHECK(has(error_of(R"({"trainer": {"Grad-Clip": 8}})"), "(did you mean \"trainer.grad_clip\"?)"));
  CHECK(has(error_of(R"({"rolout": {}})"), "(did you mean \"rollout\"?)"));
  CHECK(has(error_of(R"({"replay": {"zzzzzzzz": 1}})"), "known here: \"capacity\", \"order\""));
  CHECK(has(error_of(R"({"": 1})"), "unknown key"));
}

TEST_CASE("all problems are told together, those of --set too") {
  const auto text = error_of(R"({"rollout": {"eta": -1, "grop_size": 4}, "sede": 1})",
                             {"trainer.lr=fast", "nonsense"});
  CHECK(std::count(text.begin(), text.end(), '\n') == 4);
  CHECK(has(text, "did you mean \"rollout.group_size\"?"));
  CHECK(has(text, "did you mean \"seed\"?"));
  CHECK(has(text, "--set trainer.lr=fast: found \"fast\", expected a number, 0 to 10"));
  CHECK(has(text, "--set nonsense: expected path=value"));
}

TEST_CASE("syntax errors have line and column") {
  CHECK(has(error_of("{\n  \"seed\": 1,\n}"), "my.json:3:1: not valid JSON: "));
  CHECK(has(error_of("{\n  \"seed\": 1,\n}"), "comma too many"));
  CHECK(has(error_of("{\"seed\": 1"), "my.json:1:"));
  CHECK(has(error_of(""), "my.json:1:1: not valid JSON"));
  CHECK(has(error_of("{\"seed\": 1e999}"), "not valid JSON"));
  CHECK(has(error_of("{\"run\": {\"dir\": \"\xff\"}}"), "not valid JSON"));
}

TEST_CASE("duplicate keys are told with their path") {
  CHECK(error_of(R"({"run": {"steps": 1, "steps": 2}, "seed": 1, "seed": 2})")
        == "my.json: run.steps: this key is there twice: remove one\n"
           "my.json: seed: this key is there twice: remove one");
  CHECK(has(error_of(R"({"a": [{"b": 1}, {"c": {}, "b": 1, "b": 1}]})"), "a[1].b: this key"));
}

TEST_CASE("--set takes numbers, text, choices, lists and keys of parameters") {
  const auto s = parse_settings("{}", "x",
    {"rollout.eta=4", "run.dir=runs/7", "rollout.over_bound=drop", "sampling.temperature=0.5",
     "algorithm.loss.params.eps_low=0.1", "algorithm.loss.params.deep.name=abc", "data.template=Q: {question}=",
     "algorithm.loss.name=\"aipo\""});
  CHECK(s.rollout.eta == 4);
  CHECK(s.run.dir == "runs/7");
  CHECK(s.rollout.over_bound == over_bound::drop);
  CHECK(s.sampling.temperature == 0.5F);
  CHECK(s.algorithm.loss.params == nlohmann::json({{"eps_low", 0.1}, {"deep", {{"name", "abc"}}}}));
  CHECK(s.data.prompt_template == "Q: {question}=");
  CHECK(s.algorithm.loss.name == "aipo");
  CHECK(parse_settings("{}", "x", {"run.dir=123"}).run.dir == "123");
  CHECK(has(error_of("{}", {"rollout=3"}), "\"rollout\" is a section; set one of its options"));
  CHECK(has(error_of("{}", {"rollout.etta=3"}), "(did you mean \"rollout.eta\"?)"));
  CHECK(has(error_of("{}", {"rolout.eta=3"}), "(did you mean \"rollout.eta\"?)"));
  CHECK(has(error_of("{}", {"=3"}), "expected path=value"));
}

TEST_CASE("files that the settings name must be there") {
  const auto missing = [](const std::string& text) {
    require_files(parse_settings(text, "my.json"), "my.json");
  };
  CHECK_THROWS_WITH(missing(R"({"data": {"source": "jsonl", "file": "/no/such"}})"),
                    Catch::StartsWith("my.json: data.file: found \"/no/such\""));
  CHECK_THROWS_WITH(missing(R"({"model": {"path": "/no/such"}})"),
                    Catch::StartsWith("my.json: model.path: found \"/no/such\""));
}

TEST_CASE("options that contradict each other are refused, with a reason") {
  const auto refused = [](const std::string& text, const std::string& part) {
    CHECK(has(error_of(text), part));
  };
  refused(R"({"rollout": {"batch_size": 10, "group_size": 4}})",
          "my.json: rollout.batch_size: found 10, expected a multiple of rollout.group_size, 4");
  refused(R"({"replay": {"capacity": 10}})", "replay.capacity: found 10, expected at least");
  refused(R"({"model": {"architecture": {"hidden": 65}}})", "model.architecture.heads");
  refused(R"({"model": {"architecture": {"hidden": 12, "heads": 4}}})", "odd width 3");
  refused(R"({"model": {"architecture": {"heads": 8, "kv_heads": 3}}})", "kv_heads");
  refused(R"({"sampling": {"max_tokens": 128}})", "sampling.max_tokens: found 128, expected less");
  refused(R"({"data": {"source": "jsonl"}})", "data.file: is missing");
  refused(R"({"data": {"template": "Q"}})", "data.template: has no {question}");
  refused(R"({"data": {"held_out": 1.5}})", "data.held_out");
  refused(R"({"data": {"held_out": 0}})", "data.held_out");
  refused(R"({"deterministic": true, "rollout": {"eta": 1}})", "deterministic: found true");
  refused(R"({"deterministic": true, "rollout": {"eta": 0}, "generator": {"device": "cuda"}})",
          "deterministic: found true with generator.device \"cuda\"");
  refused(R"({"algorithm": {"kl": {"coefficient": 0.1}}})", "with no reference");
  refused(R"({"eval": {"samples": 4}})", "eval.samples");
  refused(R"({"weight_sync": {"transport": "ucx", "protocols": "sm,tcp"}})", "weight_sync.protocols");
}

TEST_CASE("a configuration that changes the mathematics is explained") {
  settings s;
  s.trainer.minibatches = 1;
  s.trainer.epochs = 1;
  REQUIRE(remarks(s).size() == 1);
  REQUIRE(has(remarks(s)[0], "nothing is ever clipped"));
}

TEST_CASE("a rate that a pre-trained model doesn't survive is remarked on") {
  settings s;
  REQUIRE(remarks(s).empty());
  s.model.path = "smollm2";
  REQUIRE(remarks(s).size() == 1);
  REQUIRE(has(remarks(s)[0], "trainer.lr: 0.0003 is a rate for a small model"));
  s.trainer.lr = 1e-5;
  REQUIRE(remarks(s).empty());
}

TEST_CASE("files: missing, empty, a folder") {
  const auto message = [](const std::string& file) {
    try {
      (void) load_settings(file);
    } catch (const user_error& e) {
      return std::string(e.what());
    }
    return std::string{};
  };
  CHECK(message("/no/such.json") == "/no/such.json: can't read it: No such file or directory");
  CHECK(message("/tmp") == "/tmp: is a folder, expected a JSON file");
  const std::string empty = "millrace_empty_test.json";
  std::ofstream{empty};
  CHECK(has(message(empty), "is empty"));
  std::remove(empty.c_str());
}

TEST_CASE("the configurations that come with the project are sound") {
  for (const auto& entry : std::filesystem::directory_iterator(MILLRACE_SOURCE_DIR "/conf"))
    if (entry.path().extension() == ".json") {
      INFO(entry.path());
      REQUIRE_NOTHROW(load_settings(entry.path()));
    }
}

TEST_CASE("damaged configurations never do worse than an error") {
  const std::string good = resolved_json(settings{});
  std::mt19937_64 random(20240607);
  for (int i = 0; i < 3000; ++i) {
    auto text = good;
    for (int k = 0; k < 1 + int(random() % 3) && !text.empty(); ++k) {
      const auto at = random() % text.size();
      switch (random() % 4) {
        case 0: text[at] = char(random()); break;
        case 1: text.erase(at, random() % 20); break;
        case 2: text.insert(at, text.substr(random() % text.size(), random() % 30)); break;
        default: text.resize(at + 1); break;
      }
    }
    INFO("seed 20240607, round " << i);
    REQUIRE_NOTHROW(error_of(text));
  }
}

TEST_CASE("the table of options names each with default and range, within its columns") {
  const auto table = options_table(80);
  CHECK(has(table, "rollout.eta = 2"));
  CHECK(has(table, "integer, 0 to 1024"));
  CHECK(has(options_table(100, "over_bound"), "\"mask\", \"drop\", \"wait\""));
  CHECK(options_table(100, "no such").empty());
}

TEST_CASE("edit distance") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("eta", "eat") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) { // symmetric, and zero only for equals
    std::string a, b;
    for (auto* s : {&a, &b})
      for (auto n = random() % 8; n > 0; --n)
        *s += char('a' + random() % 3);
    CHECK(edit_distance(a, b) == edit_distance(b, a));
    CHECK((edit_distance(a, b) == 0) == (a == b));
  }
}

TEST_CASE("config: a cluster's nodes are read, named in errors, and written back") {
  auto with = [](const std::string& nodes) {
    return parse_settings(R"({"cluster": {"nodes": )" + nodes + "}}", "c.json");
  };
  auto error = [&](const std::string& nodes) -> std::string {
    try {
      with(nodes);
    } catch (const user_error& e) {
      return e.what();
    }
    return "";
  };
  const std::string rest = R"({"name": "g", "actors": {"generator": 2, "reward": 1, "replay": 1}}])";
  auto s = with(R"([{"name": "t", "port": 4700, "actors": {"trainer": 1}}, )" + rest);
  CHECK(s.cluster.head()->name == "t");
  CHECK(s.cluster.find("g")->actors.generator == 2);
  CHECK(resolved_json(parse_settings(resolved_json(s), "again")) == resolved_json(s));

  auto set = [&](const std::string& assignment) {
    return parse_settings(resolved_json(s), "c.json", {assignment});
  };
  CHECK(set("cluster.nodes.1.port=7").cluster.nodes[1].port == 7);
  CHECK(set("cluster.nodes.0.name=tr").cluster.nodes[0].name == "tr");
  CHECK_THROWS_WITH(set("cluster.nodes.5.port=7"), Catch::Contains("has 2 entries"));
  CHECK_THROWS_WITH(set("cluster.nodes.0.port=x"), Catch::Contains("cluster.nodes[0].port: found"));

  CHECK_THAT(error(R"([{"name": "t", "prot": 1}])"),
             Catch::Contains("cluster.nodes[0].prot: unknown key (did you mean \"port\"?)"));
  CHECK_THAT(error(R"([{"name": "t", "port": "x"}])"), Catch::Contains("cluster.nodes[0].port: found"));
  CHECK_THAT(error(R"([7])"), Catch::Contains("cluster.nodes[0]: found 7, expected an object"));
  CHECK_THAT(error("7"), Catch::Contains("cluster.nodes: found 7"));
  CHECK_THAT(error(R"([{"name": "t", "actors": {"trainer": 1}}, )" + rest),
             Catch::Contains("cluster.nodes[0].port: is missing"));
  CHECK_THAT(error(R"([{"name": "t", "port": 1, "host": "10.0.0.1", "actors": {"trainer": 1}}, )" + rest),
             Catch::Contains("with no certificates"));
  CHECK_THAT(error(R"([{"name": "g", "port": 1, "actors": {"trainer": 1}}, )" + rest),
             Catch::Contains("is taken by cluster.nodes[0]"));
  CHECK_THAT(error(R"([{"name": "a\u0000\n", "port": 1, "actors": {"trainer": 1}}, )" + rest),
             Catch::Contains(R"(name: found "a\u0000\n", expected letters)"));
  CHECK_THAT(error(R"([{"name": "t", "port": 1, "host": "", "actors": {"trainer": 1}}, )" + rest),
             Catch::Contains("host: is empty"));
  CHECK_THAT(error(R"([{"name": "t", "port": 1, "env": {"A=B": "1"}, "actors": {"trainer": 1}}, )" + rest),
             Catch::Contains("env: found the name \"A=B\""));
  CHECK_THAT(error(R"([{"name": "t", "port": 1, "actors": {"trainer": 1}}])"),
             Catch::Contains("0 of the nodes' actors are \"generator\""));
}
