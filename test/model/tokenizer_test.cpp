#include "model_fixture.hpp"

#include "runtime/error.hpp"
#include "runtime/model/safetensors.hpp"
#include "runtime/model/tokenizer.hpp"

#include <catch2/catch.hpp>

#include <functional>

using namespace millrace;
using namespace millrace::model;
using test::error_of;

TEST_CASE("text survives encoding and decoding") {
  const auto ascii = make_character_tokenizer();
  REQUIRE(ascii->vocabulary_size() == 3 + 96);
  const std::string text = "What is 12 + 30?\n= 42 ~";
  REQUIRE(ascii->decode(ascii->encode(text)) == text);
  REQUIRE(ascii->encode("").empty());
  const auto wide = make_character_tokenizer({"aé∑😀 ", false});
  REQUIRE(wide->encode("😀é").size() == 2);
  REQUIRE(wide->decode(wide->encode("∑a 😀é")) == "∑a 😀é");
}

TEST_CASE("special tokens never come from text and never show in it") {
  const auto t = make_character_tokenizer();
  for (const auto id : t->encode("<eos><bos>"))
    REQUIRE(id > 2);
  const auto stop = t->stop_tokens();
  REQUIRE(stop == std::vector<std::int32_t>{2});
  const std::vector<std::int32_t> tokens{1, t->encode("x")[0], 2, 0, 99999, -4};
  REQUIRE(t->decode(tokens) == "x\uFFFD\uFFFD");
}

TEST_CASE("a character without a token is named with its position") {
  const auto t = make_character_tokenizer({"ab", false});
  const auto e = error_of([&] { (void)t->encode("abaé"); });
  REQUIRE(e.find("character 3 (byte 3)") != std::string::npos);
  REQUIRE(e.find("U+00E9") != std::string::npos);
  REQUIRE(error_of([&] { (void)t->encode("a\xFF"); }).find("UTF-8") != std::string::npos);
  const auto lenient = make_character_tokenizer({"ab", true});
  const std::vector<std::int32_t> expected{4, 3, 5};
  REQUIRE(lenient->encode("aéb") == expected);
  REQUIRE(lenient->decode(expected) == "a\uFFFDb");
}

TEST_CASE("impossible alphabets are refused") {
  REQUIRE(error_of([] { make_character_tokenizer({"aba", false}); }).find("twice")
          != std::string::npos);
  REQUIRE(error_of([] { make_character_tokenizer({"a\xC0\x80", false}); }).find("UTF-8")
          != std::string::npos);
}

TEST_CASE("a tokenizer survives its folder") {
  const test::scratch_folder folder;
  for (const bool unknown : {false, true}) {
    const auto t = make_character_tokenizer({"x\"\\\n∑", unknown});
    t->save(folder.path());
    const auto back = load_tokenizer(folder.path());
    REQUIRE(back->vocabulary_size() == t->vocabulary_size());
    REQUIRE(back->encode("∑\n\"x\\") == t->encode("∑\n\"x\\"));
    REQUIRE(back->unknown() == t->unknown());
  }
}

TEST_CASE("files that are no tokenizer are refused by name") {
  const test::scratch_folder folder;
  const auto file = folder.path() / "tokenizer.json";
  const auto refused = [&](const char* text) {
    write_file_atomically(file, text);
    const auto e = error_of([&] { (void)load_tokenizer(folder.path()); });
    INFO(text << " gave: " << e);
    REQUIRE(e.find(file.string()) != std::string::npos);
  };
  REQUIRE_FALSE(error_of([&] { (void)load_tokenizer(folder.path()); }).empty());
  refused("");
  refused("[]");
  refused("{}");
  refused(R"({"model": 3})");
  refused(R"({"model": {"type": "Unigram"}})");
  refused(R"({"model": {"type": "WordLevel"}})");
  refused(R"({"model": {"type": "WordLevel", "vocab": {"<pad>": 0, "<bos>": 1, "<eos>": 1}}})");
  refused(R"({"model": {"type": "WordLevel", "vocab": {"<pad>": 0, "<bos>": 1, "<eos>": 2}}})");
  refused(R"({"model": {"type": "WordLevel", "vocab": {"<pad>": 0, "<bos>": 1, "<eos>": 2,
             "two": 3}}})");
}
