#pragma once

#include "runtime/model/bpe.hpp"
#include "runtime/model/folder_tokenizer.hpp"
#include "runtime/model/pre_tokenizer.hpp"
#include "runtime/model/text_normalizer.hpp"
#include "runtime/model/token_decoder.hpp"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace millrace::model {

/// Byte-pair encoding as a Hugging Face folder describes it: the same ids and the same text as the
/// `tokenizers` package gives. Text goes through added tokens, normalizer, pre-tokenizer, merges.
class bpe_tokenizer final : public folder_tokenizer {
public:
  /// `document` is tokenizer.json. Throws user_error naming file, field and value for anything in
  /// the folder that is malformed or not supported.
  bpe_tokenizer(const nlohmann::json& document, const std::filesystem::path& folder);

  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens) const override;
  [[nodiscard]] std::int32_t vocabulary_size() const override {
    return static_cast<std::int32_t>(pieces_.size());
  }
  [[nodiscard]] std::int32_t unknown() const override { return unknown_; }
  [[nodiscard]] std::vector<std::int32_t> prefix() const override { return prefix_; }
  [[nodiscard]] std::string bytes_of(std::int32_t token) const override;
  [[nodiscard]] std::pair<std::string, int> stripped() const override {
    return {decoder_.stripped(), decoder_.strip_count()};
  }

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
  void read_names();
  void add_piece(std::int32_t id, const std::string& text, const json_place& place);
  [[nodiscard]] std::int32_t id_of(const std::string& text) const;
  [[nodiscard]] std::vector<std::int32_t> encoded(std::string_view text,
                                                  bool special) const override;

  std::vector<piece> pieces_;                         ///< by id
  std::unordered_map<std::string, std::int32_t> ids_; ///< added tokens too
  text_normalizer normalizer_;
  pre_tokenizer pre_tokenizer_;
  bpe merges_;
  token_decoder decoder_;
  std::vector<std::int32_t> prefix_;
  std::int32_t unknown_ = -1;
};

} // namespace millrace::model
