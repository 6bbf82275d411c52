#pragma once

#include "runtime/model/added_tokens.hpp"
#include "runtime/model/chat_template.hpp"
#include "runtime/model/tokenizer.hpp"
#include "runtime/model/tokenizer_companions.hpp"

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::model {

/// What tokenizers of Hugging Face folders have in common, whatever cuts the text in between: added
/// tokens, the names of the special ones, what ends an answer, the chat template.
class folder_tokenizer : public tokenizer {
public:
  /// Throws user_error for text that is not UTF-8.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override;
  [[nodiscard]] std::vector<std::int32_t> encode_markup(std::string_view text) const override;
  [[nodiscard]] std::vector<std::int32_t> encode_prompt(std::string_view text) const override;
  [[nodiscard]] std::vector<std::int32_t> stop_tokens() const override { return stop_; }
  [[nodiscard]] std::int32_t pad() const override { return pad_; }
  [[nodiscard]] std::int32_t bos() const override { return bos_; }
  [[nodiscard]] const chat_source& chat() const override { return companions_.chat(); }
  bool use_chat() override;
  [[nodiscard]] std::vector<std::string> special_texts() const override;
  /// Writes the files that it was loaded from.
  void save(const std::filesystem::path& folder) const override { companions_.save(folder); }

protected:
  explicit folder_tokenizer(tokenizer_companions companions) : companions_(std::move(companions)) {}

  /// UTF-8 in; `special`: whether the names of special tokens stand for them.
  [[nodiscard]] virtual std::vector<std::int32_t> encoded(std::string_view text,
                                                          bool special) const = 0;

  tokenizer_companions companions_;
  added_tokens added_; ///< what is looked for in text before anything else
  std::vector<std::int32_t> stop_;
  std::int32_t bos_ = -1, pad_ = -1;

private:
  [[nodiscard]] std::vector<std::int32_t> checked(std::string_view text, bool special) const;

  std::unique_ptr<const chat_template> chat_in_use_;
};

} // namespace millrace::model
