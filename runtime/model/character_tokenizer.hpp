#pragma once

#include "runtime/model/tokenizer.hpp"

#include <nlohmann/json_fwd.hpp>

#include <unordered_map>

namespace millrace::model {

/// One token per Unicode code point. Specials come first and have no character.
class character_tokenizer final : public tokenizer {
public:
  /// Throws user_error for an alphabet that is not UTF-8 or repeats a character.
  explicit character_tokenizer(const character_tokenizer_options& options);

  /// From the file that save() writes. `where` names it in errors.
  static std::unique_ptr<tokenizer> from_json(const nlohmann::json& document,
                                              const std::string& where);

  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override;
  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens) const override;
  [[nodiscard]] std::int32_t vocabulary_size() const override;
  [[nodiscard]] std::vector<std::int32_t> stop_tokens() const override;
  [[nodiscard]] std::int32_t pad() const override { return 0; }
  [[nodiscard]] std::int32_t bos() const override { return 1; }
  [[nodiscard]] std::int32_t unknown() const override { return unknown_; }
  void save(const std::filesystem::path& folder) const override;

private:
  std::vector<std::string> pieces_; ///< by id, as UTF-8; specials by name
  std::unordered_map<std::uint32_t, std::int32_t> ids_; ///< by code point
  std::int32_t specials_ = 3;
  std::int32_t unknown_ = -1;
};

} // namespace millrace::model
