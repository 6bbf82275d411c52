#include "actors/openai_protocol.hpp"

#include "actors/openai_fields.hpp"
#include "runtime/error.hpp"
#include "runtime/model/utf8.hpp"
#include "runtime/nearest.hpp"

#include <algorithm>
#include <limits>
#include <sstream>

namespace millrace::openai {
namespace {

constexpr std::size_t most_prompts = 64;
constexpr std::int32_t most_answers = 128;

void read_sampling(const fields& f, completion_request& r) {
  auto& s = r.sampling;
  s.temperature = static_cast<float>(f.number("temperature", 0, 100, 1));
  s.top_p = static_cast<float>(f.number("top_p", 0, 1, 1));
  if (s.top_p == 0)
    refuse("top_p", "found 0, expected above 0");
  s.min_p = static_cast<float>(f.number("min_p", 0, 0.999999, 0));
  s.top_k = static_cast<std::int32_t>(f.integer("top_k", -1, 1 << 24, 0));
  s.top_k = std::max(s.top_k, 0); // −1 is off, elsewhere
  s.min_tokens = static_cast<std::int32_t>(f.integer("min_tokens", 0, 1 << 24, 0));
  s.ignore_eos = f.flag("ignore_eos");
  r.has_seed = !f.get("seed").is_null();
  s.seed = static_cast<std::uint64_t>(
    f.integer("seed", std::numeric_limits<std::int64_t>::min(),
              std::numeric_limits<std::int64_t>::max(), 0));
  r.n = static_cast<std::int32_t>(f.integer("n", 1, most_answers, 1));
  const auto& stop = f.get("stop");
  const auto add = [&](const json& v) {
    if (!v.is_string() || v.get_ref<const std::string&>().empty() || s.stop.size() >= 16)
      refuse("stop", "found " + shown(stop)
                       + ", expected a string, or a list of up to 16 that are not empty");
    s.stop.push_back(v.get<std::string>());
  };
  if (stop.is_array())
    for (const auto& v : stop)
      add(v);
  else if (!stop.is_null())
    add(stop);
}

std::vector<std::int32_t> ids_of(const json& list, const served_model& served) {
  std::vector<std::int32_t> ids;
  for (const auto& v : list) {
    if (!v.is_number_integer() || v.get<std::int64_t>() < 0
        || v.get<std::int64_t>() >= served.vocabulary)
      refuse("prompt", "found the token " + shown(v) + ", expected ids from 0 to "
                         + std::to_string(served.vocabulary - 1));
    ids.push_back(v.get<std::int32_t>());
  }
  return ids;
}

/// A string or token ids, or a list of either.
void read_prompts(const json& prompt, const served_model& served, completion_request& r) {
  const auto add = [&](const json& p) {
    if (p.is_string()) {
      auto ids = served.tokens->prefix();
      const auto rest = served.tokens->encode_markup(p.get<std::string>());
      ids.insert(ids.end(), rest.begin(), rest.end());
      r.prompts.push_back(std::move(ids));
    } else if (p.is_array()) {
      r.prompts.push_back(ids_of(p, served));
    } else {
      refuse("prompt", "found " + shown(p) + ", expected a string or a list of token ids");
    }
  };
  const bool many = prompt.is_array() && !prompt.empty() && !prompt[0].is_number();
  if (many && prompt.size() > most_prompts)
    refuse("prompt", "found " + std::to_string(prompt.size()) + " prompts, expected up to "
                       + std::to_string(most_prompts));
  if (many)
    for (const auto& p : prompt)
      add(p);
  else
    add(prompt);
}

/// Where role or content is missing, a field that is spelt nearly so is meant. All others are the
/// template's, which may read any.
void check_message(const json& m, const std::string& where) {
  if (!m.is_object())
    refuse(where, "found " + shown(m) + ", expected an object with \"role\" and \"content\"");
  for (const std::string needed : {"role", "content"})
    for (const auto& [name, value] : m.items())
      if (const auto hint = did_you_mean(name, std::span(&needed, 1)); !m.contains(needed) && !hint.empty())
        refuse(where + "." + name, "there is no such field" + hint, "unknown_parameter");
  if (!m.contains("role") || !m["role"].is_string())
    refuse(where + ".role", "found " + shown(m.value("role", json())) + ", expected a string");
  if (!m.contains("content") && m["role"] != "assistant") // whose calls of tools may be all
    refuse(where + ".content", "expected a text");
}

/// Messages with their content as one text.
json flattened(const json& messages) {
  if (!messages.is_array() || messages.empty())
    refuse("messages", "found " + shown(messages) + ", expected a list of messages");
  auto out = messages;
  for (std::size_t i = 0; i < out.size(); ++i) {
    auto& m = out[i];
    check_message(m, "messages[" + std::to_string(i) + "]");
    auto& content = m["content"];
    if (content.is_string() || content.is_null())
      continue;
    std::string text;
    for (const auto& part : content) {
      if (!part.is_object() || part.value("type", json()) != "text" || !part.contains("text")
          || !part["text"].is_string())
        refuse("messages", "found the content " + shown(part) + "; only text is supported");
      text += part["text"].get<std::string>();
    }
    content = text;
  }
  return out;
}

void read_messages(const fields& f, const served_model& served, completion_request& r) {
  if (!served.chat)
    throw api_error(400, "the model has no chat template; use /v1/completions", "messages");
  json extra = json::object();
  // Answers are not searched for calls: who shows tools to the model must say that text is wanted.
  const auto& choice = f.get("tool_choice");
  if (const auto& tools = f.list("tools"); !tools.empty()) {
    if (choice != "none")
      refuse("tools", "calls of tools are not taken out of answers; with \"tool_choice\": \"none\" "
                      "the chat template shows the tools, and what the model says comes as text",
             "unsupported_parameter");
    extra["tools"] = tools;
  } else {
    f.only("tool_choice", {"none", "auto"});
  }
  if (const auto& more = f.object("chat_template_kwargs"); !more.is_null())
    extra.update(more);
  const bool prompted = f.get("add_generation_prompt").is_null() || f.flag("add_generation_prompt");
  r.prompts.push_back(model::encode_chat(*served.tokens, *served.chat, flattened(f.get("messages")),
                                         prompted, extra));
}

void read_stream_options(const json& options, completion_request& r) {
  static const std::vector<std::string> known{"include_usage", "include_obfuscation",
                                              "continuous_usage_stats"};
  for (const auto& [name, value] : options.items())
    if (std::find(known.begin(), known.end(), name) == known.end())
      refuse("stream_options." + name, "there is no such field" + did_you_mean(name, known),
             "unknown_parameter");
  const fields f(options);
  r.include_usage = f.flag("include_usage");
  f.only("continuous_usage_stats", {false});
}

void read_logprobs(const fields& f, completion_request& r) {
  r.tokens_as_ids = f.flag("return_tokens_as_token_ids");
  if (!r.chat) { // a number, of which 0 means the sampled tokens only
    r.logprobs = !f.get("logprobs").is_null();
    r.top_logprobs = static_cast<std::int32_t>(f.integer("logprobs", 0, 5, 0));
    return;
  }
  r.logprobs = f.flag("logprobs");
  r.top_logprobs = static_cast<std::int32_t>(f.integer("top_logprobs", 0, 20, 0));
  if (r.top_logprobs > 0 && !r.logprobs)
    refuse("top_logprobs",
           "found " + std::to_string(r.top_logprobs) + " without \"logprobs\": true");
}

/// Whose characters stand where in a text: so many begin in these bytes.
std::int64_t characters(const std::string& bytes) {
  return std::count_if(bytes.begin(), bytes.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

const char* reason(finish_reason f) { return f == finish_reason::length ? "length" : "stop"; }

} // namespace

json api_error::body() const {
  return {{"error", {{"message", what()},
                     {"type", type},
                     {"param", parameter.empty() ? json() : json(parameter)},
                     {"code", code.empty() ? json() : json(code)}}}};
}

completion_request read_completion(const std::string& text, const served_model& served, bool chat) {
  const auto body = parsed(text);
  if (!body.is_object())
    throw api_error(400, "the request's body is not a JSON object");
  const fields f(body);
  if (const auto& name = f.get("model"); !name.is_null() && name != json(served.name))
    throw api_error(404, "model: found " + shown(name) + "; this server has \"" + served.name
                           + "\"", "model", "invalid_request_error", "model_not_found");
  check_fields(body, chat);
  completion_request r;
  r.chat = chat;
  try {
    read_sampling(f, r);
    if (chat)
      read_messages(f, served, r);
    else if (f.get("prompt").is_null())
      refuse("prompt", "expected a string or token ids");
    else
      read_prompts(f.get("prompt"), served, r);
  } catch (const user_error& e) { // of tokenizer or template
    throw api_error(400, e.what(), chat ? "messages" : "prompt");
  }
  f.only("best_of", {1, r.n});
  r.stream = f.flag("stream");
  read_stream_options(f.object("stream_options"), r);
  read_logprobs(f, r);
  auto asked = f.integer("max_tokens", 1, 1 << 24, chat ? 0 : 16);
  if (chat)
    asked = f.integer("max_completion_tokens", 1, 1 << 24, asked);
  r.sampling.max_tokens = static_cast<std::int32_t>(asked);
  for (const auto& p : r.prompts) {
    const auto room = served.context - static_cast<std::int64_t>(p.size());
    if (p.empty() || room < 1)
      refuse(chat ? "messages" : "prompt",
             p.empty() ? "is empty" : "has " + std::to_string(p.size()) + " tokens, and the "
                                        "model's context is " + std::to_string(served.context));
    if (asked > room)
      refuse("max_tokens", "found " + std::to_string(asked) + ", but the prompt of "
                             + std::to_string(p.size()) + " tokens leaves "
                             + std::to_string(room) + " in the model's context");
  }
  return r;
}

std::map<std::int32_t, std::string> special_names(const model::tokenizer& tokens) {
  std::map<std::int32_t, std::string> names;
  for (const auto& text : tokens.special_texts())
    if (const auto ids = tokens.encode_markup(text); ids.size() == 1)
      names.emplace(ids[0], text);
  return names;
}

std::string system_fingerprint(std::uint64_t server, version weights) {
  std::ostringstream out;
  out << "fp_" << std::hex << server << std::dec << "_" << weights.value;
  return out.str();
}

json completion_writer::head(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", served_->name},
          {"system_fingerprint", system_fingerprint(served_->run, weights_)}};
}

std::string completion_writer::name_of(std::int32_t token, const std::string& bytes) const {
  if (request_->tokens_as_ids)
    return "token_id:" + std::to_string(token);
  if (const auto special = served_->specials.find(token); special != served_->specials.end())
    return special->second;
  if (request_->chat || model::first_bad_byte(bytes) == bytes.npos)
    return model::with_replacements(bytes);
  std::string name = "bytes:"; // OpenAI's name for a part of a character
  for (const char c : bytes) {
    constexpr const char* digits = "0123456789abcdef";
    const auto b = static_cast<unsigned char>(c);
    name += {'\\', 'x', digits[b >> 4U], digits[b & 15U]};
  }
  return name;
}

json completion_writer::named(std::int32_t token, float logp) const {
  const auto bytes = served_->tokens->bytes_of(token);
  json numbers = json::array();
  for (const char c : bytes)
    numbers.push_back(static_cast<unsigned char>(c));
  return {{"token", name_of(token, bytes)}, {"logprob", logp},
          {"bytes", bytes.empty() ? json() : std::move(numbers)}};
}

json completion_writer::chat_logprobs(const told_tokens& t) const {
  json content = json::array();
  for (std::size_t i = 0; i < t.tokens.size(); ++i) {
    auto entry = named(t.tokens[i], t.logp[i]);
    auto& top = entry["top_logprobs"] = json::array();
    if (i < t.likeliest.size())
      for (const auto& l : t.likeliest[i])
        top.push_back(named(l.token, l.logp));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

json completion_writer::logprobs(const told_tokens& t) const {
  if (!request_->logprobs)
    return nullptr;
  if (request_->chat)
    return chat_logprobs(t);
  json names = json::array(), values = json::array(), offsets = json::array(), top = json::array();
  auto offset = t.offset;
  for (std::size_t i = 0; i < t.tokens.size(); ++i) {
    const auto bytes = served_->tokens->bytes_of(t.tokens[i]);
    auto name = name_of(t.tokens[i], bytes);
    offsets.push_back(offset);
    offset += characters(bytes);
    if (i < t.likeliest.size()) {
      auto& map = top.emplace_back(json::object()); // where two have one name, the likelier counts
      for (const auto& l : t.likeliest[i])
        map.emplace(name_of(l.token, served_->tokens->bytes_of(l.token)), l.logp);
      map[name] = t.logp[i]; // OpenAI's: the sampled one is always among them
    }
    names.push_back(std::move(name));
    values.push_back(t.logp[i]);
  }
  return {{"tokens", std::move(names)}, {"token_logprobs", std::move(values)},
          {"top_logprobs", request_->top_logprobs > 0 ? std::move(top) : json()},
          {"text_offset", std::move(offsets)}};
}

std::int64_t completion_writer::characters_of(std::span<const std::int32_t> tokens) const {
  std::int64_t n = 0;
  for (const auto t : tokens)
    n += characters(served_->tokens->bytes_of(t));
  return n;
}

json completion_writer::choice(std::int32_t index, const told_tokens& t,
                               finish_reason finish) const {
  json c{{"index", index}};
  if (request_->chat)
    c["message"] = {{"role", "assistant"}, {"content", t.text}};
  else
    c["text"] = t.text;
  c["logprobs"] = logprobs(t);
  c["finish_reason"] = reason(finish);
  return c;
}

json completion_writer::chunk(std::int32_t index, const told_tokens& t, finish_reason finish,
                              bool first) const {
  json c{{"index", index}};
  if (request_->chat) {
    json delta = json::object();
    if (first)
      delta["role"] = "assistant";
    if (first || !t.text.empty())
      delta["content"] = t.text;
    c["delta"] = std::move(delta);
  } else {
    c["text"] = t.text;
  }
  c["logprobs"] = logprobs(t);
  c["finish_reason"] = finish == finish_reason::none ? json() : json(reason(finish));
  auto out = head(request_->chat ? "chat.completion.chunk" : "text_completion");
  out["choices"] = json::array({std::move(c)});
  if (request_->include_usage)
    out["usage"] = nullptr; // it comes at the end
  return out;
}

json completion_writer::response(json choices, std::int64_t prompt_tokens,
                                 std::int64_t answer_tokens) const {
  auto out = head(request_->chat ? "chat.completion" : "text_completion");
  out["choices"] = std::move(choices);
  out["usage"] = {{"prompt_tokens", prompt_tokens}, {"completion_tokens", answer_tokens},
                  {"total_tokens", prompt_tokens + answer_tokens}};
  return out;
}

json completion_writer::usage_chunk(std::int64_t prompt_tokens, std::int64_t answer_tokens) const {
  auto out = response(json::array(), prompt_tokens, answer_tokens);
  if (request_->chat)
    out["object"] = "chat.completion.chunk";
  return out;
}

} // namespace millrace::openai
