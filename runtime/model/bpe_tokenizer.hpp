#pragma once

#include "runtime/model/added_tokens.hpp"
#include "runtime/model/bpe.hpp"
#include "runtime/model/chat_template.hpp"
#include "runtime/model/pre_tokenizer.hpp"
#include "runtime/model/text_normalizer.hpp"
#include "runtime/model/token_decoder.hpp"
#include "runtime/model/tokenizer.hpp"
#include "runtime/model/tokenizer_companions.hpp"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::model {

/// Byte-pair encoding as a Hugging Face folder describes it: the same ids and the same text as the
/// `tokenizers` package gives. Text goes through added tokens, normalizer, pre-tokenizer, merges.
class bpe_tokenizer final : public tokenizer {
public:
  /// `document` is tokenizer.json. Throws user_error naming file, field and value for anything in
  /// the folder that is malformed or not supported.
  bpe_tokenizer(const nlohmann::json& document, const std::filesystem::path& folder);

  /// Throws user_error for text that is not UTF-8.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
    return encoded(text, false);
  }
  [[nodiscard]] std::vector<std::int32_t> encode_markup(std::string_view text) const override {
    return encoded(text, true);
  }
  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens) const override;
  [[nodiscard]] std::int32_t vocabulary_size() const override {
    return static_cast<std::int32_t>(pieces_.size());
  }
  [[nodiscard]] std::vector<std::int32_t> stop_tokens() const override { return stop_; }
  [[nodiscard]] std::int32_t pad() const override { return pad_; }
  [[nodiscard]] std::int32_t bos() const override { return bos_; }
  [[nodiscard]] std::int32_t unknown() const override { return unknown_; }
  [[nodiscard]] std::vector<std::int32_t> prefix() const override { return prefix_; }
  [[nodiscard]] std::string bytes_of(std::int32_t token) const override;
  [[nodiscard]] std::pair<std::string, int> stripped() const override {
    return {decoder_.stripped(), decoder_.strip_count()};
  }
  [[nodiscard]] const chat_source& chat() const override { return companions_.chat(); }
  [[nodiscard]] std::vector<std::int32_t> encode_prompt(std::string_view text) const override;
  bool use_chat() override;
  [[nodiscard]] std::vector<std::string> special_texts() const override;

  /// Writes the files that it was loaded from.
  void save(const std::filesystem::path& folder) const override;

private:
  struct piece {
    std::string text;  ///< as the vocabulary has it
    std::string bytes; ///< what it adds to decoded text
    bool known = false;
    bool special = false;
  };

  void read_vocabulary(const json_place& model);
  void read_added(const json_place& file);
  void read_model(const json_place& model);
  void read_post_processor(const json_place& place, int depth);
  void read_companions(const std::filesystem::path& folder);
  void add_piece(std::int32_t id, const std::string& text, const json_place& place);
  [[nodiscard]] std::int32_t id_of(const std::string& text) const;
  [[nodiscard]] std::vector<std::int32_t> encoded(std::string_view text, bool special) const;

  tokenizer_companions companions_;
  std::vector<piece> pieces_;                              ///< by id
  std::unordered_map<std::string, std::int32_t> ids_;      ///< added tokens too
  text_normalizer normalizer_;
  pre_tokenizer pre_tokenizer_;
  added_tokens added_;
  bpe merges_;
  token_decoder decoder_;
  std::vector<std::int32_t> stop_, prefix_;
  std::int32_t bos_ = -1, pad_ = -1, unknown_ = -1;
  std::unique_ptr<const chat_template> chat_in_use_;
};

} // namespace millrace::model
