#pragma once

#include "runtime/model/json_place.hpp"
#include "runtime/model/tokenizer.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace millrace::model {

/// Token ids in a file: one, a list of them, or none.
std::vector<std::int32_t> token_ids(const json_place& place);

/// What stands beside a tokenizer in its folder: the names of its special tokens, what ends an
/// answer, the chat template, and the files themselves, which go on with the model.
class tokenizer_companions {
public:
  tokenizer_companions() = default;
  /// Keeps the files that are there of `names` and of those that any tokenizer has. Throws user_error
  /// naming file and field for what is malformed.
  tokenizer_companions(const std::filesystem::path& folder, std::vector<std::string> names);

  [[nodiscard]] const chat_source& chat() const { return chat_; }
  /// tokenizer_config.json; an empty object where there is none.
  [[nodiscard]] json_place config() const {
    return {config_, (folder_ / "tokenizer_config.json").string()};
  }
  /// Any of these ends an answer. `id_of` knows tokens by name (−1: none), `size` is the vocabulary's.
  [[nodiscard]] std::vector<std::int32_t>
  stop_tokens(const std::function<std::int32_t(const std::string&)>& id_of, std::int32_t size) const;

  /// A kept file's content, nullptr where the folder has none.
  [[nodiscard]] const std::string* file(const std::string& name) const;
  void save(const std::filesystem::path& folder) const;

private:
  void read_chat();

  std::filesystem::path folder_;
  std::vector<std::pair<std::string, std::string>> files_; ///< name, content
  nlohmann::json config_ = nlohmann::json::object();
  std::vector<std::int32_t> ends_; ///< by generation_config.json, or config.json
  chat_source chat_;
};

} // namespace millrace::model
