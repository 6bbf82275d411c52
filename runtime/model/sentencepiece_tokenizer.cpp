#include "runtime/model/sentencepiece_tokenizer.hpp"

#include "runtime/error.hpp"
#include "runtime/model/folder_tokenizer.hpp"
#include "runtime/model/utf8.hpp"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

namespace millrace::model {
namespace {

constexpr const char* file_name = "tokenizer.model";
constexpr std::string_view visible_space = "\xE2\x96\x81"; // ▁, which pieces have for a space

std::string with_spaces(std::string text) {
  for (auto at = text.find(visible_space); at != text.npos; at = text.find(visible_space, at))
    text.replace(at, visible_space.size(), " ");
  return text;
}

class sentencepiece_tokenizer final : public folder_tokenizer {
public:
  explicit sentencepiece_tokenizer(const std::filesystem::path& folder);

  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens) const override;
  [[nodiscard]] std::int32_t vocabulary_size() const override {
    return static_cast<std::int32_t>(pieces_.size());
  }
  [[nodiscard]] std::int32_t unknown() const override { return pieces_of_.unk_id(); }
  [[nodiscard]] std::vector<std::int32_t> prefix() const override {
    return starts_with_bos_ ? tokenizer::prefix() : std::vector<std::int32_t>();
  }
  [[nodiscard]] std::string bytes_of(std::int32_t token) const override {
    return known(token) ? at(token).bytes : std::string(replacement_character);
  }
  [[nodiscard]] std::pair<std::string, int> stripped() const override { return {" ", strips_}; }
  [[nodiscard]] bool strippable(std::int32_t token) const override {
    return known(token) && at(token).spaced;
  }

private:
  struct piece {
    std::string name;
    std::string bytes;   ///< what it adds to decoded text; none of a special token
    bool byte = false;   ///< stands for a single byte
    bool spaced = false; ///< begins with a space that a text's begin doesn't keep
    bool special = false;
  };

  void read_pieces();
  void read_added();
  void read_strips();
  [[nodiscard]] std::vector<std::int32_t> encoded(std::string_view text,
                                                  bool special) const override;
  [[nodiscard]] bool known(std::int32_t id) const { return id >= 0 && id < vocabulary_size(); }
  [[nodiscard]] const piece& at(std::int32_t id) const {
    return pieces_[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] std::int32_t id_of(const std::string& name) const {
    const auto found = ids_.find(name);
    return name.empty() || found == ids_.end() ? -1 : found->second;
  }

  sentencepiece::SentencePieceProcessor pieces_of_;
  std::vector<piece> pieces_; ///< by id, added tokens too
  std::map<std::string, std::int32_t> ids_;
  int strips_ = 0;
  bool starts_with_bos_ = true;
};

sentencepiece_tokenizer::sentencepiece_tokenizer(const std::filesystem::path& folder)
  : folder_tokenizer({folder, {file_name}}) {
  const auto where = (folder / file_name).string();
  const auto* content = companions_.file(file_name);
  if (!content)
    throw user_error(where + ": cannot be read");
  const auto status = pieces_of_.LoadFromSerializedProto(*content);
  if (!status.ok() || pieces_of_.GetPieceSize() < 1)
    throw user_error(where + ": is not a SentencePiece model"
                     + (status.ok() ? "; it has no pieces" : " (" + status.ToString() + ")"));
  read_pieces();
  read_added();
  read_strips();
  const auto of = [&](const std::string& name, std::int32_t otherwise) {
    const auto id = id_of(name);
    return id >= 0 ? id : otherwise;
  };
  bos_ = of(chat().bos, pieces_of_.bos_id());
  pad_ = of(chat().pad, pieces_of_.pad_id());
  starts_with_bos_ = companions_.config()["add_bos_token"].flag(true);
  stop_ = companions_.stop_tokens([this](const auto& name) { return id_of(name); },
                                  vocabulary_size());
  if (stop_.empty() && pieces_of_.eos_id() >= 0)
    stop_.push_back(pieces_of_.eos_id());
}

void sentencepiece_tokenizer::read_pieces() {
  pieces_.resize(static_cast<std::size_t>(pieces_of_.GetPieceSize()));
  for (std::int32_t id = 0; id < vocabulary_size(); ++id) {
    auto& p = pieces_[static_cast<std::size_t>(id)];
    p.name = pieces_of_.IdToPiece(id);
    p.special = pieces_of_.IsControl(id);
    p.byte = pieces_of_.IsByte(id);
    p.spaced = !p.special && !pieces_of_.IsUnknown(id) && p.name.starts_with(visible_space);
    if (p.byte) // <0xE2>
      p.bytes = static_cast<char>(std::stoi(p.name.substr(3, 2), nullptr, 16));
    else if (pieces_of_.IsUnknown(id))
      p.bytes = pieces_of_.DecodeIds({id});
    else if (!p.special)
      p.bytes = with_spaces(p.name);
    ids_.emplace(p.name, id);
  }
}

/// Control symbols, and what the folder's files add, in the form of tokenizer.json's list.
void sentencepiece_tokenizer::read_added() {
  std::map<std::int32_t, nlohmann::json> all;
  const auto add_special = [&](std::int32_t id, const std::string& name) {
    all[id] = {{"content", name}, {"special", true}};
  };
  for (std::int32_t id = 0; id < vocabulary_size(); ++id)
    if (at(id).special || id == unknown())
      add_special(id, at(id).name);
  nlohmann::json more = nlohmann::json::object();
  if (const auto* file = companions_.file("added_tokens.json"))
    more = nlohmann::json::parse(*file, nullptr, false);
  const json_place by_name(more, "added_tokens.json");
  if (!more.is_object())
    by_name.fail("expected an object of tokens and their ids");
  for (const auto& [name, value] : more.items())
    add_special(by_name[name].id(), name);
  const auto decoder = companions_.config()["added_tokens_decoder"];
  if (!decoder.is_null() && !decoder.value().is_object())
    decoder.fail("expected an object of ids and their tokens");
  for (const auto& [key, value] : decoder.value().items()) {
    const nlohmann::json number = nlohmann::json::parse(key, nullptr, false);
    const auto id = json_place(number, decoder.where() + ": its key " + key).id();
    if (!value.is_object())
      decoder[key].fail("expected an object");
    all[id] = value;
  }
  auto list = nlohmann::json::array();
  for (auto& [id, entry] : all) {
    entry["id"] = static_cast<std::uint32_t>(id);
    entry["normalized"] = false;
    list.push_back(std::move(entry));
  }
  added_ = added_tokens({list, decoder.where()}, {});
  for (const auto& t : added_.all()) {
    if (t.id >= vocabulary_size())
      pieces_.resize(static_cast<std::size_t>(t.id) + 1);
    auto& p = pieces_[static_cast<std::size_t>(t.id)];
    if (t.id < pieces_of_.GetPieceSize())
      continue; // the model says what it is
    p = {t.content, t.special ? "" : t.content, false, false, t.special};
    ids_.emplace(t.content, t.id);
  }
  for (auto& p : pieces_)
    if (p.name.empty()) // ids that nothing has
      p.bytes = replacement_character;
}

/// Whether decoding drops the space that encoding puts before a text, or all that a text begins with:
/// the library doesn't say, but does it.
void sentencepiece_tokenizer::read_strips() {
  const auto space = id_of(std::string(visible_space));
  for (std::int32_t id = 0; id < pieces_of_.GetPieceSize(); ++id)
    if (at(id).spaced && at(id).name.size() > visible_space.size()
        && !std::string_view(at(id).name).substr(visible_space.size()).starts_with(visible_space)) {
      if (pieces_of_.DecodeIds({id}).starts_with(' '))
        return;
      strips_ = 1;
      if (space >= 0 && !pieces_of_.DecodeIds({space, id}).starts_with(' '))
        strips_ = std::numeric_limits<int>::max();
      return;
    }
}

std::vector<std::int32_t> sentencepiece_tokenizer::encoded(std::string_view text,
                                                           bool special) const {
  std::vector<std::int32_t> out;
  std::vector<int> ids;
  for (const auto& part : added_.split(text, false, special)) {
    if (part.id >= 0) {
      out.push_back(part.id);
      continue;
    }
    const auto status = pieces_of_.Encode({part.text.data(), part.text.size()}, &ids);
    if (!status.ok())
      throw user_error("tokenizer: " + status.ToString());
    out.insert(out.end(), ids.begin(), ids.end());
  }
  return out;
}

std::string sentencepiece_tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string out, run;
  const auto end_run = [&] { // each byte that is part of no character shows for itself
    for (std::size_t i = 0; i < run.size();) {
      auto end = i;
      const bool whole = next_code_point(run, end) != not_utf8;
      out += whole ? std::string_view(run).substr(i, end - i) : replacement_character;
      i = whole ? end : i + 1;
    }
    run.clear();
  };
  int strips = strips_;
  for (const auto t : tokens) {
    if (known(t) && at(t).byte) {
      run += at(t).bytes;
      strips = 0;
      continue;
    }
    end_run();
    auto bytes = bytes_of(t);
    if (bytes.empty())
      continue;
    if (strips > 0 && strippable(t)) {
      bytes.erase(0, 1);
      --strips;
    }
    if (!bytes.empty() || !strippable(t))
      strips = 0;
    out += bytes;
  }
  end_run();
  return out;
}

} // namespace

std::unique_ptr<tokenizer> load_sentencepiece(const std::filesystem::path& folder) {
  return std::make_unique<sentencepiece_tokenizer>(folder);
}

} // namespace millrace::model
