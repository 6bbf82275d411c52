#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::model {

/// A chat template with the names it may use. Empty text: the model has none.
struct chat_source {
  std::string text;  ///< Jinja
  std::string where; ///< its file, for errors
  std::string bos, eos, pad, unk; ///< tokens by name; empty where there is none
};

/// Text to token ids and back.
class tokenizer {
public:
  virtual ~tokenizer() = default;

  /// Never adds special tokens, nor reads their names in `text` as such: a prompt cannot end a
  /// rollout. Throws user_error naming a character that has no token and its position.
  [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;

  /// The same, but special tokens' names stand for them: for what a chat template has written.
  [[nodiscard]] virtual std::vector<std::int32_t> encode_markup(std::string_view text) const {
    return encode(text);
  }

  /// Special tokens are left out; an id beyond the vocabulary shows as U+FFFD.
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> tokens) const = 0;

  [[nodiscard]] virtual std::int32_t vocabulary_size() const = 0;

  /// Any of these ends an answer. May be empty.
  [[nodiscard]] virtual std::vector<std::int32_t> stop_tokens() const = 0;
  [[nodiscard]] virtual std::int32_t pad() const = 0; ///< −1: none
  [[nodiscard]] virtual std::int32_t bos() const = 0; ///< −1: none
  [[nodiscard]] virtual std::int32_t unknown() const { return -1; }

  /// What stands before every text that isn't made by a chat template: the start token, where the
  /// model was trained with one.
  [[nodiscard]] virtual std::vector<std::int32_t> prefix() const {
    return bos() < 0 ? std::vector<std::int32_t>() : std::vector{bos()};
  }

  /// Everything that the model reads of a prompt: prefix() and the text, or, after use_chat(), what
  /// the chat template makes of it as a user's message.
  [[nodiscard]] virtual std::vector<std::int32_t> encode_prompt(std::string_view text) const {
    auto tokens = prefix();
    const auto rest = encode(text);
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    return tokens;
  }
  /// Lets encode_prompt() go through the chat template. False where there is none. Throws user_error
  /// for a template that isn't supported.
  virtual bool use_chat() { return false; }
  /// The texts that encode_markup() reads as special tokens.
  [[nodiscard]] virtual std::vector<std::string> special_texts() const { return {}; }

  /// The bytes that one token adds to a text, which may be part of a character; none for a special
  /// token. What is stripped from a text's begin stands here too (stream_decoder.hpp knows).
  [[nodiscard]] virtual std::string bytes_of(std::int32_t token) const {
    return decode(std::span(&token, 1));
  }
  /// What decode() takes from a text's begin: so many copies of this.
  [[nodiscard]] virtual std::pair<std::string, int> stripped() const { return {}; }

  /// Whether it may be taken from this token.
  [[nodiscard]] virtual bool strippable(std::int32_t /*token*/) const { return true; }

  /// The model's chat template, as the folder has it.
  [[nodiscard]] virtual const chat_source& chat() const {
    static const chat_source none;
    return none;
  }

  /// Writes the tokenizer's file (and what else load_tokenizer needs) into the model folder.
  virtual void save(const std::filesystem::path& folder) const = 0;
};

struct character_tokenizer_options {
  /// UTF-8; each code point is a token. Empty: printable ASCII and newline.
  std::string alphabet;
  /// Characters outside the alphabet become <unk> instead of an error.
  bool unknown_token = false;
};

/// One token per code point, in the alphabet's order, after the specials: <pad> = 0, <bos> = 1,
/// <eos> = 2 and <unk> = 3 where asked for. Its file also loads in the `tokenizers` package.
/// Throws user_error when a character stands twice in the alphabet or it is not valid UTF-8.
std::unique_ptr<tokenizer> make_character_tokenizer(const character_tokenizer_options& options = {});

/// By folder/tokenizer.json: a character tokenizer of our own, or byte-pair encoding as the
/// tokenizers package writes it (GPT-2, Llama 3, Qwen, SmolLM and their like). Where there is none, by
/// SentencePiece's folder/tokenizer.model. Throws user_error naming the file when it is missing,
/// malformed or of a kind that is not supported.
std::unique_ptr<tokenizer> load_tokenizer(const std::filesystem::path& folder);

/// Whether the folder has either file.
bool has_tokenizer(const std::filesystem::path& folder);

} // namespace millrace::model
