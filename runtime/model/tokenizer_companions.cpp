#include "runtime/model/tokenizer_companions.hpp"

#include "runtime/atomic_file.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

namespace millrace::model {
namespace {

constexpr const char* always[] = {"tokenizer_config.json", "special_tokens_map.json",
                                  "added_tokens.json", "chat_template.jinja",
                                  "generation_config.json"};

std::optional<std::string> content_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in)
    return std::nullopt;
  return std::string{std::istreambuf_iterator<char>(in), {}};
}

nlohmann::json object_in(const std::filesystem::path& file) {
  const auto text = content_of(file);
  if (!text)
    return nlohmann::json::object();
  auto parsed = nlohmann::json::parse(*text, nullptr, false);
  if (!parsed.is_object())
    throw user_error(file.string() + ": is not a JSON object");
  return parsed;
}

/// tokenizer_config.json names a token by its text or by an object with its "content".
std::string token_name(const json_place& place) {
  if (place.is_null())
    return "";
  return place.value().is_object() ? place["content"].text() : place.text();
}

} // namespace

std::vector<std::int32_t> token_ids(const json_place& place) {
  std::vector<std::int32_t> ids;
  if (place.value().is_array())
    for (std::size_t i = 0; i < place.size(); ++i)
      ids.push_back(place.at(i).id());
  else if (!place.is_null())
    ids.push_back(place.id());
  return ids;
}

tokenizer_companions::tokenizer_companions(const std::filesystem::path& folder,
                                           std::vector<std::string> names)
  : folder_(folder), config_(object_in(folder / "tokenizer_config.json")) {
  names.insert(names.end(), std::begin(always), std::end(always));
  for (auto& name : names)
    if (auto content = content_of(folder / name))
      files_.emplace_back(std::move(name), std::move(*content));
  for (const auto* name : {"generation_config.json", "config.json"}) {
    const auto document = object_in(folder / name);
    if (ends_.empty())
      ends_ = token_ids(json_place(document, (folder / name).string())["eos_token_id"]);
  }
  read_chat();
}

void tokenizer_companions::read_chat() {
  const auto place = config();
  chat_.bos = token_name(place["bos_token"]);
  chat_.eos = token_name(place["eos_token"]);
  chat_.pad = token_name(place["pad_token"]);
  chat_.unk = token_name(place["unk_token"]);
  const auto given = place["chat_template"];
  chat_.where = given.where();
  if (given.value().is_array()) {
    for (std::size_t i = 0; i < given.size(); ++i)
      if (given.at(i)["name"].text() == "default")
        chat_.text = given.at(i)["template"].text();
  } else if (!given.is_null()) {
    chat_.text = given.text();
  }
  if (const auto* own = file("chat_template.jinja")) {
    chat_.text = *own;
    chat_.where = (folder_ / "chat_template.jinja").string();
  }
}

std::vector<std::int32_t> tokenizer_companions::stop_tokens(
  const std::function<std::int32_t(const std::string&)>& id_of, std::int32_t size) const {
  auto stop = ends_;
  if (const auto eos = id_of(chat_.eos); eos >= 0 && std::ranges::find(stop, eos) == stop.end())
    stop.push_back(eos);
  // Some models' configuration names tokens that their tokenizer never had.
  std::erase_if(stop, [&](std::int32_t id) { return id >= size; });
  return stop;
}

const std::string* tokenizer_companions::file(const std::string& name) const {
  for (const auto& [known, content] : files_)
    if (known == name)
      return &content;
  return nullptr;
}

void tokenizer_companions::save(const std::filesystem::path& folder) const {
  for (const auto& [name, content] : files_)
    write_file_atomically(folder / name, content);
}

} // namespace millrace::model
