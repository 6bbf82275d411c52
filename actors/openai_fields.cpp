#include "actors/openai_fields.hpp"

#include "runtime/nearest.hpp"

#include <algorithm>
#include <vector>

namespace millrace::openai {
namespace {

enum where : std::uint8_t { completions = 1, chats = 2, both = 3 };
/// What becomes of a field: its value is read; none matters; or only those values are accepted that
/// leave the answer as it is.
enum class use : std::uint8_t { read, no_effect, only };

struct known_field {
  const char* name;
  std::uint8_t at;
  use becomes;
  std::vector<json> harmless = {};
};

/// OpenAI's API reference, and what vLLM and SGLang add to it.
const std::vector<known_field>& known() {
  static const json nothing = json::array(), empty = json::object();
  static const std::vector<known_field> all{
    {"model", both, use::read},
    {"prompt", completions, use::read},
    {"messages", chats, use::read},
    {"max_tokens", both, use::read},
    {"max_completion_tokens", chats, use::read},
    {"temperature", both, use::read},
    {"top_p", both, use::read},
    {"top_k", both, use::read},
    {"min_p", both, use::read},
    {"min_tokens", both, use::read},
    {"ignore_eos", both, use::read},
    {"seed", both, use::read},
    {"n", both, use::read},
    {"best_of", completions, use::read},
    {"stop", both, use::read},
    {"stream", both, use::read},
    {"stream_options", both, use::read},
    {"logprobs", both, use::read},
    {"top_logprobs", chats, use::read},
    {"return_tokens_as_token_ids", both, use::read},
    {"tools", chats, use::read},
    {"tool_choice", chats, use::read},
    {"add_generation_prompt", chats, use::read},
    {"chat_template_kwargs", chats, use::read},

    {"user", both, use::no_effect},
    {"metadata", both, use::no_effect},
    {"store", both, use::no_effect},
    {"service_tier", both, use::no_effect},
    {"safety_identifier", both, use::no_effect},
    {"prompt_cache_key", both, use::no_effect},
    {"prompt_cache_retention", both, use::no_effect},
    {"prediction", chats, use::no_effect}, // it makes answers faster, not other
    {"parallel_tool_calls", chats, use::no_effect},
    {"request_id", both, use::no_effect},
    {"rid", both, use::no_effect},
    {"priority", both, use::no_effect},
    {"cache_salt", both, use::no_effect},
    {"spaces_between_special_tokens", both, use::no_effect}, // special ones are left out

    {"presence_penalty", both, use::only, {0}},
    {"frequency_penalty", both, use::only, {0}},
    {"repetition_penalty", both, use::only, {1}},
    {"length_penalty", both, use::only, {1}},
    {"logit_bias", both, use::only, {empty}},
    {"response_format", both, use::only, {json{{"type", "text"}}}},
    {"echo", both, use::only, {false}},
    {"suffix", completions, use::only, {""}},
    {"functions", chats, use::only, {nothing}},
    {"function_call", chats, use::only, {"none", "auto"}},
    {"modalities", chats, use::only, {json::array({"text"})}},
    {"audio", chats, use::only},
    {"reasoning_effort", chats, use::only},
    {"verbosity", chats, use::only, {"medium"}},
    {"web_search_options", chats, use::only},
    {"stop_token_ids", both, use::only, {nothing}},
    {"bad_words", both, use::only, {nothing}},
    {"allowed_token_ids", both, use::only},
    {"logits_processors", both, use::only, {nothing}},
    {"include_stop_str_in_output", both, use::only, {false}},
    {"skip_special_tokens", both, use::only, {true}},
    {"add_special_tokens", completions, use::only, {true}},
    {"add_special_tokens", chats, use::only, {false}},
    {"truncate_prompt_tokens", both, use::only},
    {"prompt_logprobs", both, use::only},
    {"return_token_ids", both, use::only, {false}},
    {"use_beam_search", both, use::only, {false}},
    {"continue_final_message", chats, use::only, {false}},
    {"chat_template", chats, use::only},
    {"documents", chats, use::only, {nothing}},
    {"structured_outputs", both, use::only},
    {"guided_json", both, use::only},
    {"guided_regex", both, use::only},
    {"guided_choice", both, use::only},
    {"guided_grammar", both, use::only},
    {"json_schema", both, use::only},
    {"regex", both, use::only},
    {"ebnf", both, use::only},
  };
  return all;
}

bool accepted(const json& v, const std::vector<json>& harmless) {
  return v.is_null() || std::find(harmless.begin(), harmless.end(), v) != harmless.end();
}

void check_value(const char* name, const json& v, const std::vector<json>& harmless) {
  if (accepted(v, harmless))
    return;
  std::string without;
  for (const auto& h : harmless)
    without += (without.empty() ? "; only " : " or ") + h.dump();
  refuse(name, "found " + shown(v) + ", which is not supported"
                 + (without.empty() ? "; leave it out" : without),
         "unsupported_parameter");
}

[[noreturn]] void unknown(const std::string& name, std::uint8_t at) {
  std::vector<std::string> names;
  for (const auto& k : known())
    if (k.name == name)
      refuse(name, std::string("a request for ") + (at == chats ? "chat " : "")
                     + "completions has no such field; /v1/"
                     + (at == chats ? "completions" : "chat/completions") + " has it",
             "unknown_parameter");
    else if ((k.at & at) != 0)
      names.emplace_back(k.name);
  refuse(name, "there is no such field" + did_you_mean(name, names), "unknown_parameter");
}

} // namespace

void refuse(const std::string& parameter, const std::string& what, const std::string& code) {
  throw api_error(400, parameter + ": " + what, parameter, "invalid_request_error", code);
}

json parsed(const std::string& body) {
  constexpr int deepest = 100;
  const auto not_too_deep = [](int depth, json::parse_event_t, json&) {
    if (depth > deepest)
      throw api_error(400, "the request's body is nested deeper than " + std::to_string(deepest)
                             + " levels");
    return true;
  };
  try {
    return json::parse(body, not_too_deep);
  } catch (const json::parse_error& e) {
    throw api_error(400, "the request's body is not JSON, at byte " + std::to_string(e.byte));
  }
}

std::string shown(const json& v) {
  auto text = v.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() > 80 ? text.substr(0, 77) + "..." : text;
}

void check_fields(const json& body, bool chat) {
  const std::uint8_t at = chat ? chats : completions;
  for (const auto& [name, value] : body.items()) {
    const auto& all = known();
    const auto found = std::find_if(all.begin(), all.end(), [&](const known_field& k) {
      return name == k.name && (k.at & at) != 0;
    });
    if (found == all.end())
      unknown(name, at);
    if (found->becomes == use::only)
      check_value(found->name, value, found->harmless);
  }
}

const json& fields::get(const char* name) const {
  static const json nothing;
  const auto found = body_.find(name);
  return found == body_.end() ? nothing : *found;
}

double fields::number(const char* name, double low, double high, double otherwise) const {
  const auto& v = get(name);
  if (v.is_null())
    return otherwise;
  if (!v.is_number() || !(v.get<double>() >= low) || !(v.get<double>() <= high))
    refuse(name, "found " + shown(v) + ", expected a number from " + json(low).dump() + " to "
                   + json(high).dump());
  return v.get<double>();
}

std::int64_t fields::integer(const char* name, std::int64_t low, std::int64_t high,
                             std::int64_t otherwise) const {
  const auto& v = get(name);
  if (v.is_null())
    return otherwise;
  if (!v.is_number_integer() || v.get<std::int64_t>() < low || v.get<std::int64_t>() > high)
    refuse(name, "found " + shown(v) + ", expected an integer from " + std::to_string(low) + " to "
                   + std::to_string(high));
  return v.get<std::int64_t>();
}

bool fields::flag(const char* name) const {
  const auto& v = get(name);
  if (!v.is_null() && !v.is_boolean())
    refuse(name, "found " + shown(v) + ", expected true or false");
  return v.is_boolean() && v.get<bool>();
}

const json& fields::object(const char* name) const {
  const auto& v = get(name);
  if (!v.is_null() && !v.is_object())
    refuse(name, "found " + shown(v) + ", expected an object");
  return v;
}

const json& fields::list(const char* name) const {
  const auto& v = get(name);
  if (!v.is_null() && !v.is_array())
    refuse(name, "found " + shown(v) + ", expected a list");
  return v;
}

void fields::only(const char* name, std::initializer_list<json> harmless) const {
  check_value(name, get(name), harmless);
}

} // namespace millrace::openai
