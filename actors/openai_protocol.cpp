#include "actors/openai_protocol.hpp"

#include "runtime/error.hpp"
#include "runtime/model/utf8.hpp"

#include <algorithm>
#include <initializer_list>
#include <limits>

namespace millrace::openai {
namespace {

constexpr std::size_t most_prompts = 64;
constexpr std::int32_t most_answers = 128;

[[noreturn]] void bad(const std::string& parameter, const std::string& what) {
  throw api_error(400, parameter + ": " + what, parameter);
}

std::string shown(const json& v) {
  auto text = v.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() > 80 ? text.substr(0, 77) + "..." : text;
}

/// A request's fields, each read with its range.
class fields {
public:
  explicit fields(const json& body) : body_(body) {}

  /// Null where it is absent.
  const json& get(const char* name) const {
    static const json nothing;
    const auto found = body_.find(name);
    return found == body_.end() ? nothing : *found;
  }
  double number(const char* name, double low, double high, double otherwise) const {
    const auto& v = get(name);
    if (v.is_null())
      return otherwise;
    if (!v.is_number() || !(v.get<double>() >= low) || !(v.get<double>() <= high))
      bad(name, "found " + shown(v) + ", expected a number from " + text_of(low) + " to "
                  + text_of(high));
    return v.get<double>();
  }
  std::int64_t integer(const char* name, std::int64_t low, std::int64_t high,
                       std::int64_t otherwise) const {
    const auto& v = get(name);
    if (v.is_null())
      return otherwise;
    if (!v.is_number_integer() || v.get<std::int64_t>() < low || v.get<std::int64_t>() > high)
      bad(name, "found " + shown(v) + ", expected an integer from " + std::to_string(low) + " to "
                  + std::to_string(high));
    return v.get<std::int64_t>();
  }
  bool flag(const char* name) const {
    const auto& v = get(name);
    if (!v.is_null() && !v.is_boolean())
      bad(name, "found " + shown(v) + ", expected true or false");
    return v.is_boolean() && v.get<bool>();
  }
  /// Accepts only what makes no difference.
  void refuse(const char* name, std::initializer_list<json> harmless) const {
    const auto& v = get(name);
    for (const auto& h : harmless)
      if (v == h)
        return;
    if (!v.is_null())
      bad(name, "found " + shown(v) + "; it is not supported");
  }

private:
  static std::string text_of(double d) { return json(d).dump(); }
  const json& body_;
};

void read_sampling(const fields& f, completion_request& r) {
  auto& s = r.sampling;
  s.temperature = static_cast<float>(f.number("temperature", 0, 100, 1));
  s.top_p = static_cast<float>(f.number("top_p", 0, 1, 1));
  if (s.top_p == 0)
    bad("top_p", "found 0, expected above 0");
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
      bad("stop", "found " + shown(stop)
                    + ", expected a string, or a list of up to 16 that are not empty");
    s.stop.push_back(v.get<std::string>());
  };
  if (stop.is_array())
    for (const auto& v : stop)
      add(v);
  else if (!stop.is_null())
    add(stop);
  f.refuse("presence_penalty", {0});
  f.refuse("frequency_penalty", {0});
  f.refuse("repetition_penalty", {1});
  f.refuse("logit_bias", {json::object()});
}

std::vector<std::int32_t> ids_of(const json& list, const served_model& served) {
  std::vector<std::int32_t> ids;
  for (const auto& v : list) {
    if (!v.is_number_integer() || v.get<std::int64_t>() < 0
        || v.get<std::int64_t>() >= served.vocabulary)
      bad("prompt", "found the token " + shown(v) + ", expected ids from 0 to "
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
      bad("prompt", "found " + shown(p) + ", expected a string or a list of token ids");
    }
  };
  const bool many = prompt.is_array() && !prompt.empty() && !prompt[0].is_number();
  if (many && prompt.size() > most_prompts)
    bad("prompt", "found " + std::to_string(prompt.size()) + " prompts, expected up to "
                    + std::to_string(most_prompts));
  if (many)
    for (const auto& p : prompt)
      add(p);
  else
    add(prompt);
}

/// Messages with their content as one text.
json flattened(const json& messages) {
  if (!messages.is_array() || messages.empty())
    bad("messages", "found " + shown(messages) + ", expected a list of messages");
  auto out = messages;
  for (auto& m : out) {
    if (!m.is_object() || !m.contains("role") || !m["role"].is_string())
      bad("messages", "found " + shown(m) + ", expected an object with a \"role\"");
    auto& content = m["content"];
    if (content.is_string() || content.is_null())
      continue;
    std::string text;
    for (const auto& part : content) {
      if (!part.is_object() || part.value("type", json()) != "text" || !part.contains("text")
          || !part["text"].is_string())
        bad("messages", "found the content " + shown(part) + "; only text is supported");
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
  if (const auto& tools = f.get("tools"); tools.is_array() && !tools.empty())
    extra["tools"] = tools;
  if (const auto& more = f.get("chat_template_kwargs"); more.is_object())
    extra.update(more);
  const bool prompted = f.get("add_generation_prompt").is_null() || f.flag("add_generation_prompt");
  r.prompts.push_back(model::encode_chat(*served.tokens, *served.chat, flattened(f.get("messages")),
                                         prompted, extra));
}

const char* reason(finish_reason f) { return f == finish_reason::length ? "length" : "stop"; }

} // namespace

json api_error::body() const {
  return {{"error", {{"message", what()},
                     {"type", type},
                     {"param", parameter.empty() ? json() : json(parameter)},
                     {"code", nullptr}}}};
}

completion_request read_completion(const std::string& text, const served_model& served, bool chat) {
  const auto body = json::parse(text, nullptr, false);
  if (!body.is_object())
    throw api_error(400, body.is_discarded() ? "the request's body is not JSON"
                                             : "the request's body is not a JSON object");
  const fields f(body);
  if (const auto& name = f.get("model"); !name.is_null() && name != json(served.name))
    throw api_error(404, "model: found " + shown(name) + "; this server has \"" + served.name
                           + "\"", "model");
  completion_request r;
  r.chat = chat;
  try {
    read_sampling(f, r);
    if (chat)
      read_messages(f, served, r);
    else if (f.get("prompt").is_null())
      bad("prompt", "expected a string or token ids");
    else
      read_prompts(f.get("prompt"), served, r);
  } catch (const user_error& e) { // of tokenizer or template
    throw api_error(400, e.what(), chat ? "messages" : "prompt");
  }
  f.refuse("best_of", {1, r.n});
  f.refuse("echo", {false});
  f.refuse("suffix", {""});
  f.refuse("response_format", {json{{"type", "text"}}});
  r.stream = f.flag("stream");
  if (const auto& o = f.get("stream_options"); o.is_object())
    r.include_usage = fields(o).flag("include_usage");
  r.logprobs = chat ? f.flag("logprobs") : !f.get("logprobs").is_null();
  f.integer(chat ? "top_logprobs" : "logprobs", 0, 20, 0);
  r.tokens_as_ids = f.flag("return_tokens_as_token_ids");
  auto asked = f.integer("max_tokens", 1, 1 << 24, chat ? 0 : 16);
  if (chat)
    asked = f.integer("max_completion_tokens", 1, 1 << 24, asked);
  r.sampling.max_tokens = static_cast<std::int32_t>(asked);
  for (const auto& p : r.prompts) {
    const auto room = served.context - static_cast<std::int64_t>(p.size());
    if (p.empty() || room < 1)
      bad(chat ? "messages" : "prompt",
          p.empty() ? "is empty" : "has " + std::to_string(p.size()) + " tokens, and the model's "
                                     "context is " + std::to_string(served.context));
    if (asked > room)
      bad("max_tokens", "found " + std::to_string(asked) + ", but the prompt of "
                          + std::to_string(p.size()) + " tokens leaves "
                          + std::to_string(room) + " in the model's context");
  }
  return r;
}

json completion_writer::head(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", served_->name}};
}

json completion_writer::logprobs(const told_tokens& t) const {
  if (!request_->logprobs)
    return nullptr;
  json content = json::array(), names = json::array(), values = json::array();
  for (std::size_t i = 0; i < t.tokens.size(); ++i) {
    const auto bytes = served_->tokens->bytes_of(t.tokens[i]);
    const auto name = request_->tokens_as_ids ? "token_id:" + std::to_string(t.tokens[i])
                                              : model::with_replacements(bytes);
    if (request_->chat) {
      json numbers = json::array();
      for (const char c : bytes)
        numbers.push_back(static_cast<unsigned char>(c));
      content.push_back({{"token", name}, {"logprob", t.logp[i]}, {"bytes", std::move(numbers)},
                         {"top_logprobs", json::array()}});
    } else {
      names.push_back(name);
      values.push_back(t.logp[i]);
    }
  }
  if (request_->chat)
    return {{"content", std::move(content)}};
  return {{"tokens", std::move(names)}, {"token_logprobs", std::move(values)},
          {"top_logprobs", nullptr}, {"text_offset", json::array()}};
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
