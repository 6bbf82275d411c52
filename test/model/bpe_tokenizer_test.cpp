#include "model_fixture.hpp"

#include "runtime/atomic_file.hpp"
#include "runtime/error.hpp"
#include "runtime/model/stream_decoder.hpp"
#include "runtime/model/tokenizer.hpp"
#include "runtime/model/utf8.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <fstream>
#include <functional>
#include <random>

using namespace millrace;
using namespace millrace::model;
using nlohmann::json;
using ids = std::vector<std::int32_t>;

namespace {

const json& golden() {
  static const json document = [] {
    std::ifstream in(std::string(MILLRACE_GOLDEN_DIR) + "/tokenizers.json");
    return json::parse(in);
  }();
  return document;
}

/// A folder with this tokenizer.json and, by name, other files.
std::unique_ptr<tokenizer> made(const json& document, const json& others = json::object()) {
  const test::scratch_folder folder;
  write_file_atomically(folder.path() / "tokenizer.json", document.dump());
  for (const auto& [name, content] : others.items())
    write_file_atomically(folder.path() / name,
                          content.is_string() ? content.get<std::string>() : content.dump());
  return load_tokenizer(folder.path());
}

std::string error_of(const json& document, const json& others = json::object()) {
  try {
    made(document, others);
  } catch (const user_error& e) {
    return e.what();
  }
  return "";
}

/// Bytes h, e, l, o, space and a few words of them.
json small() {
  json vocabulary{{"h", 0}, {"e", 1}, {"l", 2}, {"o", 3}, {"Ġ", 4}, {"he", 5}, {"ll", 6},
                  {"hell", 7}, {"hello", 8}, {"Ã", 9}, {"©", 10}};
  return {{"added_tokens", {{{"id", 11}, {"content", "<end>"}, {"special", true}},
                            {{"id", 12}, {"content", "oh"}, {"special", false}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary},
                     {"merges", {"h e", json{"l", "l"}, "he ll", "hell o"}}}}};
}

bool contains(const std::string& text, const std::string& what) {
  INFO("\"" << text << "\" should contain \"" << what << "\"");
  CHECK(text.find(what) != std::string::npos);
  return text.find(what) != std::string::npos;
}

} // namespace

TEST_CASE("the same ids and text as the tokenizers package") {
  const auto& texts = golden()["texts"];
  std::size_t compared = 0;
  for (const auto& c : golden()["cases"]) {
    const auto t = made(c["tokenizer"]);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto text = texts[i].get<std::string>();
      const auto& expected = c["expected"][i];
      INFO(c["name"] << ": " << texts[i].dump());
      const auto found = t->encode_markup(text);
      REQUIRE(found == expected[0].get<ids>());
      REQUIRE(t->encode(text) == (expected[1].is_null() ? found : expected[1].get<ids>()));
      REQUIRE(t->decode(found) == (expected[2].is_null() ? text : expected[2].get<std::string>()));
      ++compared;
    }
  }
  REQUIRE(compared > 400);
}

TEST_CASE("tokens that come one at a time give the same text, in whole characters") {
  const auto seed = 20240607U;
  INFO("seed " << seed);
  std::mt19937 draw(seed);
  for (const auto& c : golden()["cases"]) {
    const auto t = made(c["tokenizer"]);
    const bool any_bytes = c["name"] != "llama2"; // byte fallback: only what is text
    for (int round = 0; round < 200; ++round) {
      ids tokens;
      if (any_bytes)
        for (auto n = draw() % 40; n > 0; --n)
          tokens.push_back(static_cast<std::int32_t>(draw() % (t->vocabulary_size() + 3)) - 1);
      else
        tokens = t->encode(golden()["texts"][draw() % golden()["texts"].size()].get<std::string>());
      stream_decoder stream(*t);
      std::string joined;
      for (const auto id : tokens) {
        const auto part = stream.add(id);
        REQUIRE(first_bad_byte(part) == std::string::npos);
        joined += part;
      }
      joined += stream.finish();
      REQUIRE(joined == t->decode(tokens));
    }
  }
}

TEST_CASE("a character in two tokens is held back until it is whole") {
  const auto t = made(small());
  stream_decoder stream(*t);
  REQUIRE(stream.add(8) == "hello");
  REQUIRE(stream.add(9).empty());
  REQUIRE(stream.add(10) == "é");
  REQUIRE(stream.add(11).empty());
  REQUIRE(stream.add(9).empty());
  REQUIRE(stream.add(0) == "\uFFFDh");
  REQUIRE(stream.add(9).empty());
  REQUIRE(stream.finish() == "\uFFFD");
}

TEST_CASE("merges, added tokens, and special ones only where markup is meant") {
  const auto t = made(small());
  REQUIRE(t->encode("hello") == ids{8});
  REQUIRE(t->encode("hellhe oh") == ids{7, 5, 4, 12});
  REQUIRE(t->encode_markup("he<end>l") == ids{5, 11, 2});
  REQUIRE(t->encode("hex") == ids{5}); // no token, no unknown token: left out, as the package does
  for (const auto id : t->encode("<end>"))
    REQUIRE(id != 11);
  REQUIRE(t->decode(ids{8, 11, 12, 99, -1}) == "hellooh\uFFFD\uFFFD");
  REQUIRE(t->vocabulary_size() == 13);
  REQUIRE_THROWS_AS(t->encode("a\xFFz"), user_error);
}

TEST_CASE("long words merge as short ones do") {
  const auto t = made(small());
  for (const std::size_t n : {1, 31, 63, 64, 65, 1000, 100000}) {
    std::string text;
    ids expected;
    for (std::size_t i = 0; i < n; ++i) {
      text += "hell";
      expected.push_back(7);
    }
    REQUIRE(t->encode(text) == expected);
    REQUIRE(t->encode(std::string(2 * n, 'l')) == ids(n, 6));
  }
}

TEST_CASE("start, end and padding tokens come from the folder's other files") {
  auto document = small();
  document["post_processor"] =
    json::parse(R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<end>"}},
      {"Sequence": {"id": "A"}}], "special_tokens": {"<end>": {"id": "<end>", "ids": [11]}}})");
  const json config{{"bos_token", {{"content", "oh"}}}, {"eos_token", "<end>"},
                    {"chat_template", "{{ bos_token }}"}};
  const auto t = made(document, {{"tokenizer_config.json", config},
                                 {"generation_config.json", {{"eos_token_id", {3, 900}}}},
                                 {"config.json", {{"eos_token_id", 7}}}});
  REQUIRE(t->stop_tokens() == ids{3, 11});
  REQUIRE(t->bos() == 12);
  REQUIRE(t->pad() == -1);
  REQUIRE(t->prefix() == ids{11});
  REQUIRE(t->chat().text == "{{ bos_token }}");
  REQUIRE(t->chat().bos == "oh");
  REQUIRE(made(small(), {{"config.json", {{"eos_token_id", 7}}}})->stop_tokens() == ids{7});
  REQUIRE(made(small())->stop_tokens().empty());
  REQUIRE(made(small())->prefix().empty());
  REQUIRE(made(small(), {{"tokenizer_config.json", config},
                         {"chat_template.jinja", "newer"}})->chat().text == "newer");
}

TEST_CASE("saving gives the same files") {
  const test::scratch_folder from, to;
  const auto text = small().dump(3) + "\n";
  write_file_atomically(from.path() / "tokenizer.json", text);
  write_file_atomically(from.path() / "generation_config.json", R"({"eos_token_id": [11]})");
  load_tokenizer(from.path())->save(to.path());
  std::ifstream in(to.path() / "tokenizer.json");
  REQUIRE(std::string(std::istreambuf_iterator<char>(in), {}) == text);
  REQUIRE(load_tokenizer(to.path())->stop_tokens() == ids{11});
}

TEST_CASE("what is not supported is refused by field and value") {
  const auto with = [](const char* path, const json& value) {
    auto document = small();
    document[json::json_pointer(path)] = value;
    return error_of(document);
  };
  contains(with("/normalizer", {{"type", "BertNormalizer"}}), "normalizer.type: found \"BertNorm");
  contains(with("/pre_tokenizer", {{"type", "Whitespace"}}), "pre_tokenizer.type: found \"White");
  contains(with("/decoder", {{"type", "WordPiece"}}), "decoder.type: found \"WordPiece\"");
  contains(with("/post_processor", {{"type", "BertProcessing"}}), "post_processor.type: found");
  contains(with("/model/dropout", 0.1), "model.dropout: found 0.1");
  contains(with("/model/end_of_word_suffix", "</w>"), "end_of_word_suffix: found \"</w>\"");
  contains(with("/model/merges/0", "h"), "model.merges[0]: found \"h\"");
  contains(with("/model/merges/0", "h x"), "not all of \"h\", \"x\"");
  contains(with("/model/merges", 3), "expected a list");
  contains(with("/model/vocab", json::array()), "model.vocab: found []");
  contains(with("/model/vocab/he", -1), "model.vocab.he: found -1");
  contains(with("/model/vocab/he", 0), "id 0 is taken by");
  contains(with("/model/vocab/he", 1e9), "expected a token id");
  contains(with("/model/unk_token", "<unk>"), "unk_token: found \"<unk>\"");
  contains(with("/added_tokens/0/content", ""), "added_tokens[0].content");
  contains(with("/added_tokens/0/id", 3), "id 3 is taken by \"o\"");
  const auto pattern = [&](const std::string& regex) {
    return with("/pre_tokenizer", {{"type", "Split"}, {"behavior", "Isolated"},
                                   {"pattern", {{"Regex", regex}}}});
  };
  REQUIRE(pattern("\\s+(?!\\S)|[^\\s\\p{Han}]").empty());
  contains(pattern("(a"), "not a regular expression");
  contains(pattern("[a&&b]"), "&&");
  contains(pattern("(?m:.)"), "(?m");
  contains(pattern("\\h"), "\\h");
  contains(pattern("\\p{Nonsense}"), "Regex: found");
  contains(with("/pre_tokenizer", {{"type", "Split"}, {"behavior", "Odd"},
                                   {"pattern", {{"String", "x"}}}}), "found \"Odd\"");
  contains(error_of(small(), {{"tokenizer_config.json", "[]"}}), "tokenizer_config.json");
  contains(error_of(small(), {{"generation_config.json", {{"eos_token_id", "x"}}}}),
           "generation_config.json.eos_token_id: found \"x\"");
}

TEST_CASE("files with anything in them are refused or work, and never crash") {
  const auto seed = 77U;
  INFO("seed " << seed);
  std::mt19937 draw(seed);
  const auto& cases = golden()["cases"];
  const json odd[] = {nullptr, true, -1, 0, 1e30, "", "ByteLevel", "Sequence", json::array(),
                      json::object(), {{"type", "Sequence"}}, {{"type", 3}}, "\\", "(((", 70000};
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    auto document = round % 4 == 0 ? small() : cases[draw() % cases.size()]["tokenizer"];
    for (auto n = 1 + draw() % 3; n > 0; --n) { // one value somewhere becomes another
      auto* at = &document;
      while (at->is_structured() && !at->empty() && draw() % 8 != 0)
        at = &*std::next(at->begin(), static_cast<std::ptrdiff_t>(
                                        draw() % std::min<std::size_t>(at->size(), 12)));
      *at = odd[draw() % std::size(odd)];
    }
    try {
      const auto t = made(document);
      (void)t->decode(t->encode_markup("hello <end> 123 \u00e9\U0001F600 x"));
    } catch (const user_error&) {
      ++refused;
    }
  }
  REQUIRE(refused > 50);
  const auto text = small().dump();
  const test::scratch_folder folder;
  for (int round = 0; round < 400; ++round) { // bytes cut off, changed, doubled
    auto bad = text.substr(0, round % 3 == 0 ? draw() % text.size() : text.size());
    for (auto n = draw() % 4; n > 0 && !bad.empty(); --n)
      bad[draw() % bad.size()] = static_cast<char>(draw());
    write_file_atomically(folder.path() / "tokenizer.json", bad);
    try {
      (void)load_tokenizer(folder.path())->encode("hello");
    } catch (const user_error&) {
    }
  }
}
