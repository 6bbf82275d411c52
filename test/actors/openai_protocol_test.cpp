// Requests and responses of OpenAI's API, without a server.

#include "actors/openai_protocol.hpp"

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::openai;

namespace {

const auto tokens = model::make_character_tokenizer();

served_model served() {
  served_model m{"small", tokens.get(), nullptr, 64, tokens->vocabulary_size()};
  m.specials = {{tokens->stop_tokens().at(0), "<eos>"}};
  m.run = 0xAB;
  return m;
}

/// A chat template that shows what it was given.
struct chatting {
  model::chat_source source{
    "{% for t in tools or [] %}[{{ t.name }}]{% endfor %}{% for m in messages %}{{ m.content }}"
    "{% endfor %}", "template", "", "", "", ""};
  model::chat_template chat{source};
  served_model model = served();
  chatting() { model.chat = &chat; }
};

struct refusal {
  std::string parameter, message, code;
};

refusal refused(json body, bool chat = false) {
  const chatting c;
  if (!body.contains("prompt") && !chat)
    body["prompt"] = "x";
  if (chat && !body.contains("messages"))
    body["messages"] = json::array({{{"role", "user"}, {"content", "x"}}});
  try {
    read_completion(body.dump(), c.model, chat);
  } catch (const api_error& e) {
    REQUIRE(e.status == 400);
    return {e.parameter, e.what(), e.code};
  }
  return {};
}

bool taken(const json& body, bool chat) {
  const auto r = refused(body, chat);
  UNSCOPED_INFO(r.message);
  return r.message.empty();
}

completion_request read(json body, bool chat = false) {
  const chatting c;
  body[chat ? "messages" : "prompt"]
    = chat ? json::array({{{"role", "user"}, {"content", "x"}}}) : json("x");
  return read_completion(body.dump(), c.model, chat);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

} // namespace

TEST_CASE("a field that doesn't exist is named, with the nearest one that does") {
  auto r = refused({{"temprature", 0.5}});
  REQUIRE(r.parameter == "temprature");
  REQUIRE(r.code == "unknown_parameter");
  REQUIRE(has(r.message, "\"temperature\""));
  REQUIRE(has(refused({{"max_token", 5}}, true).message, "\"max_tokens\""));
  REQUIRE(refused({{"zzzzzzzzzz", nullptr}}).parameter == "zzzzzzzzzz");
  // What the other address takes.
  r = refused({{"max_completion_tokens", 5}});
  REQUIRE(has(r.message, "/v1/chat/completions"));
  REQUIRE(has(refused({{"suffix", "x"}}, true).message, "/v1/completions has it"));
  r = refused({{"stream_options", {{"include_usge", true}}}});
  REQUIRE(r.parameter == "stream_options.include_usge");
  REQUIRE(has(r.message, "\"include_usage\""));
}

TEST_CASE("a message's misspelt field is named, with its place and the nearest one") {
  const auto second = [](const json& message) {
    return refused({{"messages", {{{"role", "system"}, {"content", "x"}}, message}}}, true);
  };
  auto r = second({{"role", "user"}, {"contnet", "x"}});
  REQUIRE(r.parameter == "messages[1].contnet");
  REQUIRE(r.code == "unknown_parameter");
  REQUIRE(has(r.message, "\"content\""));
  REQUIRE(has(second({{"rloe", "user"}, {"content", "x"}}).message, "\"role\""));
  REQUIRE(second({{"role", "user"}}).parameter == "messages[1].content");
  REQUIRE(second({{"content", "x"}}).parameter == "messages[1].role");
  REQUIRE(second("x").parameter == "messages[1]");
  // What templates may ask for.
  REQUIRE(second({{"role", "user"}, {"content", "x"}, {"weight", 1}}).message.empty());
  REQUIRE(second({{"role", "assistant"}, {"content", "x"}, {"reasoning_content", "y"}})
            .message.empty());
  REQUIRE(second({{"role", "assistant"}, {"tool_calls", json::array()}}).message.empty());
}

TEST_CASE("what is not supported is refused where it would change the answer") {
  for (const bool chat : {false, true}) {
    for (const auto& body : {
           json{{"logit_bias", {{"5", 1}}}}, json{{"presence_penalty", 0.5}},
           json{{"frequency_penalty", -1}}, json{{"repetition_penalty", 1.1}},
           json{{"response_format", {{"type", "json_object"}}}}, json{{"echo", true}},
           json{{"stop_token_ids", {3}}}, json{{"guided_regex", "a+"}}, json{{"bad_words", {"x"}}},
           json{{"use_beam_search", true}}, json{{"skip_special_tokens", false}},
           json{{"prompt_logprobs", 1}}, json{{"add_special_tokens", chat}},
           json{{"stream_options", {{"continuous_usage_stats", true}}}}}) {
      const auto name = body.begin().key();
      const auto r = refused(body, chat);
      INFO(body.dump() << ": " << r.message);
      REQUIRE((r.parameter == name || name == "stream_options"));
      REQUIRE(r.code == "unsupported_parameter");
      REQUIRE(has(r.message, "not supported"));
    }
    for (const auto& body : {
           json{{"logit_bias", json::object()}}, json{{"presence_penalty", 0.0}},
           json{{"frequency_penalty", nullptr}}, json{{"repetition_penalty", 1.0}},
           json{{"response_format", {{"type", "text"}}}}, json{{"echo", false}},
           json{{"stop_token_ids", json::array()}}, json{{"skip_special_tokens", true}},
           json{{"user", "me"}}, json{{"metadata", {{"a", "b"}}}}, json{{"store", true}},
           json{{"service_tier", "auto"}}, json{{"n", 1}}, json{{"priority", 3}},
           json{{"stream_options", {{"include_usage", true}, {"include_obfuscation", false}}}},
           json{{"stream_options", nullptr}}, json{{"top_k", -1}}, json{{"min_p", 0.1}},
           json{{"min_tokens", 2}}, json{{"ignore_eos", true}},
           json{{"return_tokens_as_token_ids", true}}, json{{"model", "small"}}})
      REQUIRE(taken(body, chat));
  }
  REQUIRE(refused({{"best_of", 3}}).parameter == "best_of");
  REQUIRE(refused({{"suffix", "end"}}).parameter == "suffix");
  REQUIRE(taken({{"best_of", 1}, {"suffix", ""}}, false));
  REQUIRE(taken({{"best_of", 4}, {"n", 4}}, false));
  for (const auto& body : {json{{"modalities", {"text", "audio"}}}, json{{"audio", json::object()}},
                           json{{"functions", {1}}}, json{{"verbosity", "low"}},
                           json{{"reasoning_effort", "high"}}, json{{"tool_choice", "required"}},
                           json{{"continue_final_message", true}}, json{{"chat_template", "x"}}})
    REQUIRE(refused(body, true).parameter == body.begin().key());
  REQUIRE(taken({{"modalities", {"text"}}, {"function_call", "none"}, {"tool_choice", "auto"},
                 {"parallel_tool_calls", true}, {"tools", json::array()}, {"verbosity", "medium"},
                 {"prediction", {{"type", "content"}, {"content", "x"}}}}, true));
  REQUIRE(refused({{"chat_template_kwargs", 3}}, true).parameter == "chat_template_kwargs");
  REQUIRE(refused({{"tools", 3}}, true).parameter == "tools");
}

TEST_CASE("tools are shown to the model by who wants text") {
  const json tools = json::array({{{"name", "add"}}});
  const auto r = refused({{"tools", tools}}, true);
  REQUIRE(r.parameter == "tools");
  REQUIRE(has(r.message, "\"tool_choice\": \"none\""));
  const auto prompt = read({{"tools", tools}, {"tool_choice", "none"}}, true).prompts[0];
  REQUIRE(tokens->decode(prompt) == "[add]x");
}

TEST_CASE("so many likely tokens as OpenAI serves, and no more") {
  REQUIRE(read({{"logprobs", 5}}).top_logprobs == 5);
  REQUIRE(read({{"logprobs", 0}}).logprobs);
  REQUIRE(read({{"logprobs", 0}}).top_logprobs == 0);
  REQUIRE_FALSE(read({{"logprobs", nullptr}}).logprobs);
  REQUIRE(has(refused({{"logprobs", 6}}).message, "from 0 to 5"));
  REQUIRE(refused({{"logprobs", true}}).parameter == "logprobs");
  REQUIRE(read({{"logprobs", true}, {"top_logprobs", 20}}, true).top_logprobs == 20);
  REQUIRE(has(refused({{"logprobs", true}, {"top_logprobs", 21}}, true).message, "from 0 to 20"));
  REQUIRE(refused({{"top_logprobs", 2}}, true).parameter == "top_logprobs");
  REQUIRE(refused({{"logprobs", false}, {"top_logprobs", 2}}, true).parameter == "top_logprobs");
  REQUIRE_FALSE(read({{"top_logprobs", 0}}, true).logprobs);
}

TEST_CASE("log-probs are written in OpenAI's form") {
  const auto m = served();
  const auto b = tokens->encode("b")[0], c = tokens->encode("c")[0];
  const std::int32_t eos = tokens->stop_tokens().at(0);
  const told_tokens told{
    "b", {b, eos}, {-2, -0.5F}, {{{c, -1}, {eos, -1.5F}}, {{eos, -0.5F}, {b, -3}}}, 7};
  auto r = read({{"logprobs", 2}});
  completion_writer plain(r, m, "id", 1);
  plain.sampled_by({4});
  auto out = plain.choice(0, told, finish_reason::stop)["logprobs"];
  REQUIRE(out["tokens"] == json{"b", "<eos>"});
  REQUIRE(out["token_logprobs"] == json{-2.0, -0.5});
  // The sampled token is there too, after the likeliest.
  REQUIRE(out["top_logprobs"][0] == json{{"c", -1.0}, {"<eos>", -1.5}, {"b", -2.0}});
  REQUIRE(out["top_logprobs"][1] == json{{"<eos>", -0.5}, {"b", -3.0}});
  REQUIRE(out["text_offset"] == json{7, 8});
  REQUIRE(plain.response(json::array(), 3, 2)["system_fingerprint"] == "fp_ab_4");
  REQUIRE(plain.response(json::array(), 3, 2)["usage"]["total_tokens"] == 5);

  r = read({{"logprobs", 0}});
  auto only = told;
  only.likeliest.clear();
  out = completion_writer(r, m, "id", 1).choice(0, only, finish_reason::stop)["logprobs"];
  REQUIRE(out["top_logprobs"].is_null());
  r = read({{"logprobs", 2}, {"return_tokens_as_token_ids", true}});
  out = completion_writer(r, m, "id", 1).choice(0, told, finish_reason::stop)["logprobs"];
  REQUIRE(out["tokens"][0] == "token_id:" + std::to_string(b));
  REQUIRE(out["top_logprobs"][0]["token_id:" + std::to_string(c)] == -1.0);

  r = read({{"logprobs", true}, {"top_logprobs", 2}}, true);
  out = completion_writer(r, m, "id", 1).choice(0, told, finish_reason::stop)["logprobs"];
  REQUIRE(out["content"][0]["token"] == "b");
  REQUIRE(out["content"][0]["bytes"] == json{98});
  REQUIRE(out["content"][0]["top_logprobs"][0]
          == json{{"token", "c"}, {"logprob", -1.0}, {"bytes", {99}}});
  REQUIRE(out["content"][0]["top_logprobs"].size() == 2);
  REQUIRE(out["content"][1]["token"] == "<eos>");
  REQUIRE(out["content"][1]["bytes"].is_null());
}

TEST_CASE("usage has its place in every chunk that announces it") {
  const auto m = served();
  const auto asked = read({{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  const auto without = read({{"stream", true}});
  const told_tokens told{"b", {40}, {-2}};
  const completion_writer w(asked, m, "id", 1);
  const auto chunk = w.chunk(0, told, finish_reason::none, true);
  REQUIRE(chunk.contains("usage"));
  REQUIRE(chunk["usage"].is_null());
  REQUIRE(w.usage_chunk(3, 1)["usage"]["completion_tokens"] == 1);
  REQUIRE(w.usage_chunk(3, 1)["choices"].empty());
  REQUIRE_FALSE(completion_writer(without, m, "id", 1).chunk(0, told, finish_reason::none, true)
                  .contains("usage"));
}
