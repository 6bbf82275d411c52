#include "runtime/model/character_tokenizer.hpp"

#include "runtime/atomic_file.hpp"
#include "runtime/error.hpp"
#include "runtime/model/utf8.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>

namespace millrace::model {
namespace {

constexpr std::array special_names{"<pad>", "<bos>", "<eos>", "<unk>"};
std::string printable_ascii() {
  std::string all;
  for (char c = ' '; c <= '~'; ++c)
    all += c;
  return all + '\n';
}

/// A character as the user would look for it: itself, and its code where it can't be seen.
std::string shown(std::string_view piece, std::uint32_t code) {
  if (code == not_utf8)
    return "a byte that is not UTF-8";
  char number[16];
  std::snprintf(number, sizeof number, "U+%04X", code);
  return code >= 0x20 && code != 0x7F ? "'" + std::string(piece) + "' (" + number + ")" : number;
}

/// As much of it as a message has room for, cut between characters.
std::string beginning_of(std::string_view text) {
  constexpr std::size_t room = 40;
  if (text.size() <= room)
    return std::string(text);
  auto end = room;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U)
    --end;
  return std::string(text.substr(0, end)) + "…";
}

} // namespace

character_tokenizer::character_tokenizer(const character_tokenizer_options& options) {
  specials_ = options.unknown_token ? 4 : 3;
  unknown_ = options.unknown_token ? 3 : -1;
  for (std::int32_t i = 0; i < specials_; ++i)
    pieces_.emplace_back(special_names[static_cast<std::size_t>(i)]);
  const auto alphabet = options.alphabet.empty() ? printable_ascii() : options.alphabet;
  for (std::size_t at = 0; at < alphabet.size();) {
    const auto begin = at;
    const auto code = next_code_point(alphabet, at);
    const auto piece = alphabet.substr(begin, at - begin);
    if (code == not_utf8)
      throw user_error("tokenizer alphabet: byte " + std::to_string(begin) + " is not UTF-8");
    if (!ids_.emplace(code, static_cast<std::int32_t>(pieces_.size())).second)
      throw user_error("tokenizer alphabet: " + shown(piece, code) + " stands in it twice");
    pieces_.push_back(piece);
  }
}

std::vector<std::int32_t> character_tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const auto begin = at;
    const auto code = next_code_point(text, at);
    if (const auto known = ids_.find(code); known != ids_.end())
      tokens.push_back(known->second);
    else if (unknown_ >= 0)
      tokens.push_back(unknown_);
    else
      throw user_error("tokenizer: character " + std::to_string(tokens.size()) + " (byte "
                       + std::to_string(begin) + ") of \"" + beginning_of(text) + "\": "
                       + shown(text.substr(begin, at - begin), code)
                       + " is not in the alphabet of " + std::to_string(ids_.size())
                       + " characters; a new model can have it (tokenizer.alphabet)");
  }
  return tokens;
}

std::string character_tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (const auto t : tokens)
    if (t >= specials_ && t < vocabulary_size())
      text += pieces_[static_cast<std::size_t>(t)];
    else if (t < 0 || t >= vocabulary_size() || t == unknown_)
      text += "\xEF\xBF\xBD";
  return text;
}

std::int32_t character_tokenizer::vocabulary_size() const {
  return static_cast<std::int32_t>(pieces_.size());
}

std::vector<std::int32_t> character_tokenizer::stop_tokens() const { return {2}; }

void character_tokenizer::save(const std::filesystem::path& folder) const {
  using nlohmann::json;
  json vocabulary = json::object();
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    vocabulary[pieces_[i]] = i;
  json added = json::array();
  for (std::int32_t i = 0; i < specials_; ++i)
    added.push_back({{"id", i},
                     {"content", pieces_[static_cast<std::size_t>(i)]},
                     {"single_word", false}, {"lstrip", false}, {"rstrip", false},
                     {"normalized", false}, {"special", true}});
  const json document{
    {"version", "1.0"},
    {"truncation", nullptr},
    {"padding", nullptr},
    {"added_tokens", added},
    {"normalizer", nullptr},
    {"pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "(?m:.)"}}},
                       {"behavior", "Isolated"}, {"invert", false}}},
    {"post_processor", nullptr},
    {"decoder", {{"type", "Fuse"}}},
    {"model", {{"type", "WordLevel"}, {"vocab", vocabulary}, {"unk_token", "<unk>"}}}};
  write_file_atomically(folder / "tokenizer.json", document.dump(1) + "\n");
  json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"pad_token", "<pad>"}, {"bos_token", "<bos>"}, {"eos_token", "<eos>"},
              {"clean_up_tokenization_spaces", false}};
  if (unknown_ >= 0)
    config["unk_token"] = "<unk>";
  write_file_atomically(folder / "tokenizer_config.json", config.dump(1) + "\n");
}

std::unique_ptr<tokenizer> character_tokenizer::from_json(const nlohmann::json& document,
                                                          const std::string& where) {
  const auto fail = [&](const std::string& what) {
    throw user_error(where + ": " + what);
  };
  const auto& model = document["model"];
  if (!model.contains("vocab") || !model["vocab"].is_object())
    fail("its model has no \"vocab\" object");
  const auto& vocabulary = model["vocab"];
  std::vector<std::string> pieces(vocabulary.size());
  std::vector<bool> seen(vocabulary.size());
  for (const auto& [piece, id] : vocabulary.items()) {
    if (!id.is_number_unsigned() || id.get<std::size_t>() >= pieces.size()
        || seen[id.get<std::size_t>()])
      fail("token \"" + piece + "\" has id " + id.dump() + "; ids must be 0 … "
           + std::to_string(pieces.size() - 1) + ", each once");
    pieces[id.get<std::size_t>()] = piece;
    seen[id.get<std::size_t>()] = true;
  }
  character_tokenizer_options options;
  options.unknown_token = pieces.size() > 3 && pieces[3] == special_names[3];
  const std::size_t specials = options.unknown_token ? 4 : 3;
  for (std::size_t i = 0; i < specials; ++i)
    if (i >= pieces.size() || pieces[i] != special_names[i])
      fail("is no character tokenizer: token " + std::to_string(i) + " should be "
           + special_names[i]);
  for (std::size_t i = specials; i < pieces.size(); ++i) {
    std::size_t at = 0;
    if (pieces[i].empty() || next_code_point(pieces[i], at) == not_utf8 || at != pieces[i].size())
      fail("is no character tokenizer: token " + std::to_string(i) + " is not one character");
    options.alphabet += pieces[i];
  }
  if (options.alphabet.empty())
    fail("has no characters");
  return std::make_unique<character_tokenizer>(options);
}

std::unique_ptr<tokenizer> make_character_tokenizer(const character_tokenizer_options& options) {
  return std::make_unique<character_tokenizer>(options);
}

} // namespace millrace::model
