#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::model {

/// Text to token ids and back.
class tokenizer {
public:
  virtual ~tokenizer() = default;

  /// Never adds special tokens, nor reads their names in `text` as such: a prompt cannot end a
  /// rollout. Throws user_error naming a character that has no token and its position.
  [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;

  /// Special tokens are left out; an id beyond the vocabulary shows as U+FFFD.
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> tokens) const = 0;

  [[nodiscard]] virtual std::int32_t vocabulary_size() const = 0;

  /// Any of these ends an answer. May be empty.
  [[nodiscard]] virtual std::vector<std::int32_t> stop_tokens() const = 0;
  [[nodiscard]] virtual std::int32_t pad() const = 0; ///< −1: none
  [[nodiscard]] virtual std::int32_t bos() const = 0; ///< −1: none
  [[nodiscard]] virtual std::int32_t unknown() const { return -1; }

  /// Writes tokenizer.json (and what else load_tokenizer needs) into the model folder.
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

/// By folder/tokenizer.json. Throws user_error naming the file when it is missing, malformed or of
/// a kind that is not supported.
std::unique_ptr<tokenizer> load_tokenizer(const std::filesystem::path& folder);

} // namespace millrace::model
