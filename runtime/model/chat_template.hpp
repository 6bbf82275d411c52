#pragma once

#include "runtime/model/jinja_parser.hpp"
#include "runtime/model/tokenizer.hpp"

#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <string_view>

namespace millrace::model {

/// A model's chat template: messages to the text that the model was trained to go on from.
///
/// The subset of Jinja that such templates use: if, for (with loop.*, a condition, else, break,
/// continue), set, namespaces, inline if, operators, slices, the common filters, tests and string
/// methods, white space control, as transformers sets Jinja up. Not: macros, inclusion, clocks
/// (strftime_now is not defined, so that a template takes the date that it has for this case).
class chat_template {
public:
  /// Throws user_error naming file, line and what is not supported; also when there is no template.
  explicit chat_template(const chat_source& source);

  /// `messages`: [{"role": …, "content": …}, …]. `extra`: further variables, such as "tools".
  /// Throws user_error for what the template refuses or can't do, with its line.
  [[nodiscard]] std::string render(const nlohmann::ordered_json& messages,
                                   bool add_generation_prompt = true,
                                   const nlohmann::ordered_json& extra
                                   = nlohmann::ordered_json::object()) const;

private:
  std::shared_ptr<const jinja::block> body_;
  chat_source source_;
};

/// The tokens of a conversation. Names of special tokens stand for them where the template wrote
/// them; in the messages they are text like any other, so that a question can't end an answer.
std::vector<std::int32_t> encode_chat(const tokenizer& tokens, const chat_template& chat,
                                      nlohmann::ordered_json messages,
                                      bool add_generation_prompt = true,
                                      const nlohmann::ordered_json& extra
                                      = nlohmann::ordered_json::object());

} // namespace millrace::model
