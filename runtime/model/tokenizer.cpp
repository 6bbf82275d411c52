#include "runtime/model/tokenizer.hpp"

#include "runtime/error.hpp"
#include "runtime/model/bpe_tokenizer.hpp"
#include "runtime/model/character_tokenizer.hpp"
#include "runtime/model/sentencepiece_tokenizer.hpp"

#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>

namespace millrace::model {

bool has_tokenizer(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / "tokenizer.json")
         || std::filesystem::exists(folder / "tokenizer.model");
}

std::unique_ptr<tokenizer> load_tokenizer(const std::filesystem::path& folder) {
  const auto file = folder / "tokenizer.json";
  std::ifstream in(file);
  if (!in && std::filesystem::exists(folder / "tokenizer.model"))
    return load_sentencepiece(folder);
  if (!in)
    throw user_error(file.string() + ": cannot be read, and there is no tokenizer.model; a model "
                     "folder needs its tokenizer");
  std::stringstream text;
  text << in.rdbuf();
  const auto document = nlohmann::json::parse(text.str(), nullptr, false);
  if (document.is_discarded() || !document.is_object())
    throw user_error(file.string() + ": is not a JSON object");
  const auto found = document.find("model");
  const auto model = found == document.end() ? nlohmann::json() : *found;
  const auto kind = model.is_object() && model.contains("type") && model["type"].is_string()
                      ? model["type"].get<std::string>()
                      : std::string(model.contains("merges") ? "BPE" : "none");
  if (kind == "WordLevel")
    return character_tokenizer::from_json(document, file.string());
  if (kind == "BPE")
    return std::make_unique<bpe_tokenizer>(document, folder);
  throw user_error(file.string() + ": tokenizers of type " + kind
                   + " are not supported; supported are BPE, and WordLevel with one character "
                   "per token");
}

} // namespace millrace::model
