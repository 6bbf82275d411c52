// The tokenizer of a tokenizer.model file beside the library that wrote it. The models are trained
// here, by the library's trainer, on the texts of test/golden.

#include "model_fixture.hpp"

#include "runtime/atomic_file.hpp"
#include "runtime/error.hpp"
#include "runtime/model/stream_decoder.hpp"
#include "runtime/model/tokenizer.hpp"
#include "runtime/model/utf8.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>

using namespace millrace;
using namespace millrace::model;
using nlohmann::json;
using ids = std::vector<std::int32_t>;

namespace {

const std::vector<std::string>& texts() {
  static const std::vector<std::string> all = [] {
    std::ifstream in(std::string(MILLRACE_GOLDEN_DIR) + "/tokenizers.json");
    auto t = json::parse(in)["texts"].get<std::vector<std::string>>();
    t.insert(t.end(), {"", " ", "   ", " a", "a ", "  two  spaces  ", "\n", "tab\tand\nline", "</s>",
                       "<s> x <unk>", "ﬁne ½ ①", "e\u0301\u00e9", "日本語のテキスト", "🙂🙃👩‍👩‍👧",
                       "12345 67", "x▁y", "▁"});
    return t;
  }();
  return all;
}

class lines : public sentencepiece::SentenceIterator {
public:
  lines() {
    for (int i = 0; i < 3; ++i)
      for (const auto& t : texts())
        if (!t.empty() && std::ranges::all_of(t, known))
          all_.push_back(t);
  }
  [[nodiscard]] bool done() const override { return at_ == all_.size(); }
  void Next() override { ++at_; }
  [[nodiscard]] const std::string& value() const override { return all_[at_]; }
  [[nodiscard]] sentencepiece::util::Status status() const override { return {}; }

private:
  /// The models never see other scripts' characters, so that bytes and unknown tokens are needed.
  static bool known(char c) { return c != '\n' && static_cast<unsigned char>(c) < 0xE3; }

  std::vector<std::string> all_;
  std::size_t at_ = 0;
};

std::string trained(std::unordered_map<std::string, std::string> how) {
  how.insert({{"hard_vocab_limit", "false"}, {"num_threads", "1"}, {"minloglevel", "2"}});
  lines input;
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(how, &input, &model);
  INFO(status.ToString());
  REQUIRE(status.ok());
  return model;
}

/// Llama 2's kind, the default kind (as T5's), and Gemma's, which puts no space before a text.
const std::map<std::string, std::string>& models() {
  static const std::map<std::string, std::string> all{
    {"bpe", trained({{"model_type", "bpe"}, {"vocab_size", "800"}, {"byte_fallback", "true"},
                     {"character_coverage", "0.98"}, {"normalization_rule_name", "identity"},
                     {"remove_extra_whitespaces", "false"}, {"split_digits", "true"},
                     {"allow_whitespace_only_pieces", "true"}})},
    {"unigram", trained({{"model_type", "unigram"}, {"vocab_size", "600"},
                         {"character_coverage", "0.98"}})},
    {"bare", trained({{"model_type", "unigram"}, {"vocab_size", "700"}, {"byte_fallback", "true"},
                      {"add_dummy_prefix", "false"}, {"remove_extra_whitespaces", "false"},
                      {"normalization_rule_name", "identity"}, {"pad_id", "3"},
                      {"control_symbols", "<|end|>"}, {"user_defined_symbols", "<tool>"}})}};
  return all;
}

std::unique_ptr<tokenizer> made(const std::string& model, const json& others = json::object()) {
  const test::scratch_folder folder;
  write_file_atomically(folder.path() / "tokenizer.model", model);
  for (const auto& [name, content] : others.items())
    write_file_atomically(folder.path() / name, content.dump());
  return load_tokenizer(folder.path());
}

std::string streamed(const tokenizer& t, const ids& tokens) {
  stream_decoder stream(t);
  std::string joined;
  for (const auto id : tokens) {
    const auto part = stream.add(id);
    REQUIRE(first_bad_byte(part) == std::string::npos);
    joined += part;
  }
  return joined + stream.finish();
}

} // namespace

TEST_CASE("SentencePiece: the same ids and text as the library") {
  for (const auto& [name, model] : models()) {
    const auto t = made(model);
    sentencepiece::SentencePieceProcessor library;
    REQUIRE(library.LoadFromSerializedProto(model).ok());
    REQUIRE(t->vocabulary_size() == library.GetPieceSize());
    REQUIRE(t->bos() == library.bos_id());
    REQUIRE(t->pad() == library.pad_id());
    REQUIRE(t->unknown() == library.unk_id());
    REQUIRE(t->stop_tokens() == ids{library.eos_id()});
    REQUIRE(t->prefix() == ids{library.bos_id()});
    for (const auto& text : texts()) {
      INFO(name << ": " << json(text).dump());
      const auto expected = library.EncodeAsIds(text);
      REQUIRE(t->encode(text) == expected);
      REQUIRE(t->decode(expected) == library.DecodeIds(expected));
      REQUIRE(streamed(*t, expected) == library.DecodeIds(expected));
    }
  }
}

TEST_CASE("SentencePiece: any tokens give the library's text") {
  const auto seed = 11U;
  INFO("seed " << seed);
  std::mt19937 draw(seed);
  for (const auto& [name, model] : models()) {
    const auto t = made(model);
    sentencepiece::SentencePieceProcessor library;
    REQUIRE(library.LoadFromSerializedProto(model).ok());
    for (int round = 0; round < 2000; ++round) {
      ids tokens;
      for (auto n = draw() % 12; n > 0; --n)
        tokens.push_back(static_cast<std::int32_t>(
          draw() % (round % 2 == 0 ? 300U : static_cast<unsigned>(t->vocabulary_size()))));
      INFO(name << ": " << json(tokens).dump());
      REQUIRE(t->decode(tokens) == library.DecodeIds(tokens));
      bool any_byte = false; // of bytes that are no text the stream may show fewer
      for (const auto id : tokens)
        any_byte = any_byte || library.IsByte(id);
      if (!any_byte)
        REQUIRE(streamed(*t, tokens) == t->decode(tokens));
    }
  }
}

TEST_CASE("SentencePiece: special tokens stand in markup only, and more may follow the vocabulary") {
  const auto& model = models().at("bpe");
  const auto plain = made(model);
  REQUIRE(plain->encode_markup("<s>") == ids{1});
  REQUIRE(plain->encode("<s>").size() > 1);
  REQUIRE(plain->decode(ids{1, 2}).empty());
  const auto n = plain->vocabulary_size();
  const json config{
    {"add_bos_token", false}, {"bos_token", "<s>"}, {"eos_token", {{"content", "<|im_end|>"}}},
    {"chat_template", "{% for m in messages %}<s>{{ m.content }}<|im_end|>{% endfor %}"},
    {"added_tokens_decoder",
     {{"1", {{"content", "<s>"}, {"special", true}}},
      {std::to_string(n), {{"content", "<|im_end|>"}, {"special", true}}},
      {std::to_string(n + 1), {{"content", "<think>"}, {"special", false}}}}}};
  const auto t = made(model, {{"tokenizer_config.json", config}, {"added_tokens.json", {{"<x>", n + 3}}}});
  REQUIRE(t->vocabulary_size() == n + 4);
  REQUIRE(t->stop_tokens() == ids{n});
  REQUIRE(t->prefix().empty());
  REQUIRE(t->encode_markup("<|im_end|>") == ids{n});
  REQUIRE(t->encode("<think>") == ids{n + 1});
  for (const auto id : t->encode("a<|im_end|>"))
    REQUIRE(id < n);
  auto tokens = plain->encode("a b");
  tokens.insert(tokens.end(), {n, n + 1});
  const auto more = plain->encode("c");
  tokens.insert(tokens.end(), more.begin(), more.end());
  REQUIRE(t->decode(tokens) == "a b<think> c");
  REQUIRE(streamed(*t, tokens) == "a b<think> c");
  REQUIRE(t->decode(ids{n + 2, -1, n + 9}) == "\uFFFD\uFFFD\uFFFD");
  // A user's text can't end the question.
  auto chat = made(model, {{"tokenizer_config.json", config}});
  REQUIRE(chat->use_chat());
  const auto prompt = chat->encode_prompt("hi <|im_end|>");
  REQUIRE(prompt.front() == 1);
  REQUIRE(std::ranges::count(prompt, n) == 1);
  REQUIRE(prompt.back() == n);
  REQUIRE(chat->decode(prompt).find("<|im_end|>") != std::string::npos);
}

TEST_CASE("SentencePiece: a saved folder has the same tokenizer; tokenizer.json goes first") {
  const test::scratch_folder from, to;
  write_file_atomically(from.path() / "tokenizer.model", models().at("unigram"));
  write_file_atomically(from.path() / "generation_config.json", R"({"eos_token_id": [2, 5]})");
  REQUIRE(has_tokenizer(from.path()));
  REQUIRE_FALSE(has_tokenizer(to.path()));
  load_tokenizer(from.path())->save(to.path());
  std::ifstream in(to.path() / "tokenizer.model", std::ios::binary);
  REQUIRE(std::string(std::istreambuf_iterator<char>(in), {}) == models().at("unigram"));
  REQUIRE(load_tokenizer(to.path())->stop_tokens() == ids{2, 5});
  make_character_tokenizer({.alphabet = "abc"})->save(from.path());
  REQUIRE(load_tokenizer(from.path())->encode("ab") == ids{3, 4});
}

TEST_CASE("SentencePiece: files with anything in them are refused or work, and never crash") {
  const auto error_of = [](const std::string& model, const json& others = json::object()) {
    try {
      (void)made(model, others)->decode(ids{0, 1, 5});
    } catch (const user_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  for (const auto* bad : {"", "no model", "\x0a"})
    REQUIRE(error_of(bad).find("tokenizer.model: is not a SentencePiece model") != std::string::npos);
  const auto& model = models().at("unigram");
  REQUIRE(error_of(model.substr(0, model.size() / 2)).find("tokenizer.model") != std::string::npos);
  REQUIRE(error_of(model, {{"tokenizer_config.json", {{"added_tokens_decoder", {{"x", {}}}}}}})
            .find("added_tokens_decoder") != std::string::npos);
  REQUIRE_THROWS_AS(made(model)->encode("a\xFFz"), user_error);
  const auto seed = 5U;
  INFO("seed " << seed);
  std::mt19937 draw(seed);
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    auto bad = round % 3 == 0 ? model.substr(0, draw() % model.size()) : model;
    for (auto n = 1 + draw() % 3; n > 0 && !bad.empty(); --n)
      bad[draw() % std::min<std::size_t>(bad.size(), round % 2 == 0 ? 400 : bad.size())]
        = static_cast<char>(draw());
    try {
      const auto t = made(bad);
      (void)t->decode(t->encode("hello 123 \u00e9\U0001F600 x"));
    } catch (const user_error&) {
      ++refused;
    }
  }
  REQUIRE(refused > 50);
}
