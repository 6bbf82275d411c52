#include "rollout/jsonl_source.hpp"

#include "rollout/final_answer.hpp"
#include "rollout/json_lines.hpp"
#include "rollout/shuffled_order.hpp"
#include "runtime/config/options.hpp"
#include "runtime/error.hpp"
#include "runtime/nearest.hpp"
#include "runtime/random.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <set>
#include <unordered_map>

namespace millrace {

namespace {

constexpr std::size_t longest_line = std::size_t{64} << 20;
constexpr std::string_view question_mark = "{question}";

std::string hex(std::uint64_t x) {
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4)
    text += "0123456789abcdef"[(x >> shift) & 15];
  return text;
}

/// The field's text. A number is taken as it is written.
std::string text_field(const nlohmann::json& object, const std::string& field,
                       const std::string& where) {
  const auto at = object.find(field);
  if (at == object.end()) {
    std::vector<std::string> fields;
    for (const auto& [key, value] : object.items())
      fields.push_back(key);
    throw user_error(where + ": has no field \"" + field + "\"" + did_you_mean(field, fields)
                     + "; found " + (fields.empty() ? "none" : quoted_list(fields))
                     + ". Set data.question_field and data.answer_field to the names in the file");
  }
  if (at->is_number())
    return at->dump();
  if (!at->is_string())
    throw user_error(where + ": field \"" + field + "\": found " + describe_value(*at)
                     + ", expected text");
  return at->get<std::string>();
}

/// Without GSM8K's calculator notes: "48/2 = <<48/2=24>>24" → "48/2 = 24".
std::string without_notes(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto open = text.find("<<", at);
    const auto close = open == std::string::npos ? open : text.find(">>", open);
    const auto note = close == std::string::npos
                        ? std::string_view()
                        : std::string_view(text).substr(open + 2, close - open - 2);
    // Only sums are notes; "<<" may stand in a question on programs too.
    if (note.find('=') == std::string_view::npos || note.find('\n') != std::string_view::npos) {
      const auto end = open == std::string::npos ? text.size() : open + 2;
      out.append(text, at, end - at);
      at = end;
    } else {
      out.append(text, at, open - at);
      at = close + 2;
    }
  }
  return out;
}

std::string fill(const std::string& prompt_template, const std::string& question) {
  std::string text;
  std::size_t from = 0;
  for (auto at = prompt_template.find(question_mark); at != std::string::npos;
       at = prompt_template.find(question_mark, from)) {
    text.append(prompt_template, from, at - from).append(question);
    from = at + question_mark.size();
  }
  return text.append(prompt_template, from);
}

} // namespace

jsonl_source::jsonl_source(const data_settings& options, std::uint64_t seed)
  : shuffle_(options.shuffle), seed_(seed) {
  if (options.file.empty())
    throw user_error("data.file: is missing; name a file of JSON lines, or give --data FILE");
  if (options.prompt_template.find(question_mark) == std::string::npos)
    throw user_error("data.template: found \"" + options.prompt_template
                     + "\", expected {question} somewhere in it");
  each_json_line(options.file, longest_line, [&](std::int64_t line, nlohmann::json object) {
    if (items_.empty())
      recognise(object, options);
    items_.push_back(read(object, options.prompt_template,
                          options.file + ":" + std::to_string(line)));
  });
  if (items_.empty())
    throw user_error(options.file + ": is empty, expected one JSON object a line with a question");
  split(options.held_out, options.file);
}

void jsonl_source::recognise(const nlohmann::json& first, const data_settings& options) {
  question_field_ = options.question_field;
  answer_field_ = options.answer_field;
  const data_settings defaults;
  const bool is_default = question_field_ == defaults.question_field
                          && answer_field_ == defaults.answer_field;
  if (is_default && !first.contains(question_field_) && first.contains("problem")
      && first.contains("solution")) {
    if (first.contains("answer"))
      reference_field_ = "answer";
    question_field_ = "problem";
    answer_field_ = "solution";
  }
}

jsonl_source::item jsonl_source::read(const nlohmann::json& object,
                                      const std::string& prompt_template,
                                      const std::string& where) const {
  item i;
  const auto question = text_field(object, question_field_, where);
  if (trimmed(question).empty())
    throw user_error(where + ": field \"" + question_field_ + "\" is empty, expected a question");
  i.text = fill(prompt_template, question);
  if (answer_field_.empty())
    return i;
  const auto answer = text_field(object, answer_field_, where);
  const auto reference = reference_field_.empty() ? answer
                                                  : text_field(object, reference_field_, where);
  i.answer = std::string(marked_answer(reference).value_or(trimmed(reference)));
  i.demonstration = without_notes(answer);
  return i;
}

void jsonl_source::split(double held_out, const std::string& file) {
  std::unordered_map<std::string_view, std::size_t> numbers; // of questions, as they appear
  std::vector<std::size_t> question(items_.size()), first;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const auto [it, fresh] = numbers.emplace(items_[i].text, first.size());
    question[i] = it->second;
    if (fresh)
      first.push_back(i);
  }
  const auto distinct = static_cast<std::int64_t>(first.size());
  const auto count = held_out < 1
                       ? static_cast<std::int64_t>(std::floor(
                           held_out * static_cast<double>(distinct)))
                       : static_cast<std::int64_t>(held_out);
  if (count >= distinct || held_out < 0)
    throw user_error("data.held_out: " + std::to_string(count) + " prompts are to be held out, but "
                     + file + " has only " + std::to_string(distinct)
                     + " different questions; lower it");
  const shuffled_order order(distinct, seed_ ^ stream_of("jsonl.held_out"), 0);
  std::vector<bool> out(first.size());
  for (std::int64_t k = 0; k < count; ++k) {
    const auto q = static_cast<std::size_t>(order(k));
    out[q] = true;
    held_out_.push_back(first[q]);
  }
  for (std::size_t i = 0; i < items_.size(); ++i)
    if (!out[question[i]])
      train_.push_back(i);
}

std::size_t jsonl_source::item_at(std::int64_t position) const {
  ensure(position >= 0, [&] { return "prompt at position " + std::to_string(position); });
  const auto index = position % epoch_size();
  if (!shuffle_)
    return train_[static_cast<std::size_t>(index)];
  const shuffled_order order(epoch_size(), seed_ ^ stream_of("jsonl.train"),
                             position / epoch_size());
  return train_[static_cast<std::size_t>(order(index))];
}

prompt jsonl_source::at(std::int64_t position) const {
  const auto& i = items_[item_at(position)];
  return {position, i.text, i.answer};
}

prompt jsonl_source::held_out(std::int64_t index) const {
  const auto& i = items_[held_out_.at(static_cast<std::size_t>(index))];
  return {held_out_ids + index, i.text, i.answer};
}

std::string jsonl_source::demonstration(const prompt& p) const {
  if (p.id < held_out_ids)
    return items_[item_at(p.id)].demonstration;
  return items_[held_out_.at(static_cast<std::size_t>(p.id - held_out_ids))].demonstration;
}

std::string jsonl_source::alphabet() const {
  // Characters as UTF-8: nlohmann's parser has refused anything else.
  std::set<std::string> all;
  for (const auto& i : items_)
    for (const auto* text : {&i.text, &i.demonstration})
      for (std::size_t at = 0; at < text->size();) {
        auto end = at + 1;
        while (end < text->size() && (static_cast<unsigned char>((*text)[end]) & 0xC0) == 0x80)
          ++end;
        all.insert(text->substr(at, end - at));
        at = end;
      }
  std::string alphabet;
  for (const auto& c : all)
    alphabet += c;
  return alphabet;
}

std::string jsonl_source::fingerprint() const {
  auto h = stream_of("jsonl");
  auto add = [&h](std::uint64_t x) { h = (h ^ x) * 0x100000001b3U; };
  for (const auto& i : items_)
    for (const auto* text : {&i.text, &i.answer, &i.demonstration})
      add(stream_of(*text));
  for (auto i : held_out_)
    add(i);
  return "jsonl " + std::to_string(items_.size()) + " lines, content " + hex(h)
         + (shuffle_ ? " shuffled" : "") + " seed " + std::to_string(seed_);
}

} // namespace millrace
