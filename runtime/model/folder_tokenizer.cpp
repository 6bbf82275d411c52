#include "runtime/model/folder_tokenizer.hpp"

#include "runtime/error.hpp"
#include "runtime/model/utf8.hpp"

#include <nlohmann/json.hpp>

#include <utility>

namespace millrace::model {

std::vector<std::int32_t> folder_tokenizer::checked(std::string_view text, bool special) const {
  if (const auto bad = first_bad_byte(text); bad != text.npos)
    throw user_error("tokenizer: byte " + std::to_string(bad) + " of the text is not UTF-8");
  return encoded(text, special);
}

std::vector<std::int32_t> folder_tokenizer::encode(std::string_view text) const {
  return checked(text, false);
}

std::vector<std::int32_t> folder_tokenizer::encode_markup(std::string_view text) const {
  return checked(text, true);
}

bool folder_tokenizer::use_chat() {
  if (!chat().text.empty())
    chat_in_use_ = std::make_unique<chat_template>(chat());
  return chat_in_use_ != nullptr;
}

std::vector<std::int32_t> folder_tokenizer::encode_prompt(std::string_view text) const {
  if (!chat_in_use_)
    return tokenizer::encode_prompt(text);
  nlohmann::ordered_json question{{"role", "user"}, {"content", std::string(text)}};
  return encode_chat(*this, *chat_in_use_, nlohmann::ordered_json::array({std::move(question)}));
}

std::vector<std::string> folder_tokenizer::special_texts() const {
  std::vector<std::string> all;
  for (const auto& t : added_.all())
    if (t.special)
      all.push_back(t.content);
  return all;
}

} // namespace millrace::model
