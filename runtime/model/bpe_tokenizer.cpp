#include "runtime/model/bpe_tokenizer.hpp"

#include "runtime/model/json_place.hpp"
#include "runtime/model/utf8.hpp"

#include <utility>

namespace millrace::model {

bpe_tokenizer::bpe_tokenizer(const nlohmann::json& document, const std::filesystem::path& folder)
  : folder_tokenizer({folder, {"tokenizer.json", "vocab.json", "merges.txt"}}) {
  const json_place file(document, (folder / "tokenizer.json").string());
  normalizer_ = text_normalizer(file["normalizer"]);
  pre_tokenizer_ = pre_tokenizer(file["pre_tokenizer"]);
  decoder_ = token_decoder(file["decoder"]);
  read_vocabulary(file["model"]);
  read_model(file["model"]);
  read_added(file);
  read_post_processor(file["post_processor"], 0);
  for (auto& p : pieces_)
    if (!p.known)
      p.bytes = replacement_character;
    else if (!p.special && p.bytes.empty())
      p.bytes = decoder_.bytes_of(p.text);
  read_names();
}

void bpe_tokenizer::add_piece(std::int32_t id, const std::string& text, const json_place& place) {
  const auto i = static_cast<std::size_t>(id);
  if (i >= pieces_.size())
    pieces_.resize(i + 1);
  if (pieces_[i].known && pieces_[i].text != text)
    place.fail("id " + std::to_string(id) + " is taken by \"" + pieces_[i].text + "\" already");
  if (const auto [known, fresh] = ids_.emplace(text, id); !fresh && known->second != id)
    place.fail("\"" + text + "\" has id " + std::to_string(known->second) + " already");
  pieces_[i].text = text;
  pieces_[i].known = true;
}

std::int32_t bpe_tokenizer::id_of(const std::string& text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? -1 : found->second;
}

void bpe_tokenizer::read_vocabulary(const json_place& model) {
  const auto vocabulary = model["vocab"];
  if (!vocabulary.value().is_object() || vocabulary.value().empty())
    vocabulary.fail("expected an object of tokens and their ids");
  ids_.reserve(vocabulary.value().size());
  for (const auto& [text, id] : vocabulary.value().items()) {
    const json_place entry(id, vocabulary.where() + "." + text);
    add_piece(entry.id(), text, entry);
  }
}

void bpe_tokenizer::read_model(const json_place& model) {
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const auto place = model[name]; !place.is_null() && !place.text().empty())
      place.fail("only vocabularies without it are supported");
  if (const auto place = model["dropout"]; !place.is_null() && place.value() != 0.0)
    place.fail("only 0 is supported");
  bpe::rules rules;
  rules.bytes = pre_tokenizer_.byte_level();
  rules.ignore_merges = model["ignore_merges"].flag(false);
  rules.byte_fallback = model["byte_fallback"].flag(false);
  rules.fuse_unknown = model["fuse_unk"].flag(false);
  if (const auto unknown = model["unk_token"]; !unknown.is_null()) {
    rules.unknown = unknown_ = id_of(unknown.text());
    if (unknown_ < 0 && !unknown.text().empty())
      unknown.fail("the vocabulary has no such token");
  }
  std::vector<bpe::merge> merges;
  const auto list = model["merges"];
  merges.reserve(list.size());
  std::string left, right;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto& m = list.value()[i];
    if (m.is_string()) {
      const auto& text = m.get_ref<const std::string&>();
      const auto space = text.find(' ');
      if (space == text.npos || text.find(' ', space + 1) != text.npos)
        list.at(i).fail("expected two tokens with a space between");
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
      left = m[0].get_ref<const std::string&>();
      right = m[1].get_ref<const std::string&>();
    } else {
      list.at(i).fail("expected two tokens");
    }
    merges.push_back({id_of(left), id_of(right), id_of(left + right)});
    if (merges.back().left < 0 || merges.back().right < 0 || merges.back().whole < 0)
      list.at(i).fail("not all of \"" + left + "\", \"" + right
                      + "\" and the two joined are in the vocabulary");
  }
  std::vector<std::pair<std::string, std::int32_t>> symbols;
  symbols.reserve(pieces_.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    if (pieces_[i].known) {
      auto text = rules.bytes ? from_byte_alphabet(pieces_[i].text) : pieces_[i].text;
      if (text && !text->empty())
        symbols.emplace_back(std::move(*text), static_cast<std::int32_t>(i));
    }
  merges_ = bpe(rules, symbols, merges);
}

void bpe_tokenizer::read_added(const json_place& file) {
  added_ = added_tokens(file["added_tokens"], normalizer_);
  for (const auto& t : added_.all()) {
    add_piece(t.id, t.content, file["added_tokens"]);
    auto& p = pieces_[static_cast<std::size_t>(t.id)];
    p.special = t.special;
    if (t.normalized && !t.special)
      p.bytes = decoder_.bytes_of(normalizer_.apply(t.content));
  }
}

/// Of a template, what stands before the text. What it puts behind would end the text, and is for
/// classification.
void bpe_tokenizer::read_post_processor(const json_place& place, int depth) {
  if (place.is_null())
    return;
  const auto type = place.type();
  if (type == "Sequence" && depth < 8) {
    const auto list = place["processors"];
    for (std::size_t i = 0; i < list.size(); ++i)
      read_post_processor(list.at(i), depth + 1);
  } else if (type == "TemplateProcessing") {
    const auto single = place["single"];
    for (std::size_t i = 0; i < single.size(); ++i) {
      const auto special = single.at(i)["SpecialToken"];
      if (special.is_null())
        break;
      for (const auto id : token_ids(place["special_tokens"][special["id"].text()]["ids"]))
        prefix_.push_back(id);
    }
    for (const auto id : prefix_)
      if (id >= vocabulary_size())
        place["special_tokens"].fail("id " + std::to_string(id) + " is not in the vocabulary");
  } else if (type != "ByteLevel") {
    place["type"].fail("supported post-processors are ByteLevel, TemplateProcessing and Sequence");
  }
}

void bpe_tokenizer::read_names() {
  bos_ = id_of(chat().bos);
  pad_ = id_of(chat().pad);
  stop_ = companions_.stop_tokens([this](const auto& name) { return id_of(name); },
                                  vocabulary_size());
}

std::vector<std::int32_t> bpe_tokenizer::encoded(std::string_view text, bool special) const {
  std::vector<std::int32_t> out;
  bpe::workspace space;
  pre_tokenizer::words words;
  const auto encode_plain = [&](std::string_view part, bool first) {
    words.text.assign(part);
    pre_tokenizer_.apply(words, first);
    for (const auto w : words.spans)
      merges_.encode(std::string_view(words.text).substr(w.begin, w.end - w.begin), space, out);
  };
  for (const auto& raw : added_.split(text, false, special)) {
    if (raw.id >= 0) {
      out.push_back(raw.id);
      continue;
    }
    const auto normal = normalizer_.apply(std::string(raw.text));
    for (const auto& part : added_.split(normal, true, special))
      if (part.id >= 0)
        out.push_back(part.id);
      else
        encode_plain(part.text, raw.text.data() == text.data()
                                  && part.text.data() == normal.data());
  }
  return out;
}

std::string bpe_tokenizer::bytes_of(std::int32_t token) const {
  if (token < 0 || token >= vocabulary_size())
    return std::string(replacement_character);
  return pieces_[static_cast<std::size_t>(token)].bytes;
}

std::string bpe_tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string bytes, run;
  const auto end_run = [&] {
    if (first_bad_byte(run) == run.npos)
      bytes += run;
    else
      for (std::size_t i = 0; i < run.size(); ++i)
        bytes += replacement_character;
    run.clear();
  };
  bool first = true;
  for (const auto t : tokens) {
    const bool known = t >= 0 && t < vocabulary_size();
    if (known && pieces_[static_cast<std::size_t>(t)].special)
      continue;
    if (known && decoder_.is_byte(pieces_[static_cast<std::size_t>(t)].text)) {
      run += bytes_of(t);
      continue;
    }
    end_run();
    if (decoder_.spaced() && !std::exchange(first, false))
      bytes += ' ';
    bytes += bytes_of(t);
  }
  end_run();
  auto text = with_replacements(bytes);
  std::size_t strip = 0;
  const auto& what = decoder_.stripped();
  for (int i = 0; i < decoder_.strip_count() && text.compare(strip, what.size(), what) == 0; ++i)
    strip += what.size();
  return text.substr(strip);
}

} // namespace millrace::model
