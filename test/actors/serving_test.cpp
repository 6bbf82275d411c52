#include "actors/openai_server.hpp"
#include "rollout/openai_engine.hpp"
#include "runtime/atomic_file.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"
#include "runtime/model/checkpoint.hpp"
#include "runtime/scratch_folder.hpp"

#include <catch2/catch.hpp>
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <thread>

using namespace millrace;
using namespace millrace::openai;
namespace fs = std::filesystem;

namespace {

/// A small model with a byte-pair tokenizer and a chat template, in a folder.
class model_folder {
public:
  explicit model_folder(std::uint64_t seed) {
    std::ifstream in(std::string(MILLRACE_GOLDEN_DIR) + "/tokenizers.json");
    const auto golden = nlohmann::json::parse(in);
    for (const auto& c : golden["cases"])
      if (c["name"] == "qwen2")
        write_file_atomically(path_ / "tokenizer.json", c["tokenizer"].dump());
    write_file_atomically(
      path_ / "tokenizer_config.json",
      nlohmann::json{{"eos_token", "<|im_end|>"},
                     {"chat_template",
                      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
                      "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"}}
        .dump());
    tokens = model::load_tokenizer(path_);
    config.vocab_size = tokens->vocabulary_size();
    config.hidden_size = 32;
    config.intermediate_size = 48;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 4;
    config.num_key_value_heads = 2;
    config.head_dim = 8;
    config.max_position_embeddings = 4096;
    config.initializer_range = 0.3;
    auto e = engine();
    model::initialise(config, e->staging(), seed);
    model::save_checkpoint(path_, config, e->staging());
  }

  [[nodiscard]] std::unique_ptr<generation::engine> engine() const {
    generation::engine_options o;
    o.max_batch = 8;
    return generation::make_engine(o, config, tokens);
  }
  [[nodiscard]] std::unique_ptr<generation::engine> loaded() const {
    auto e = engine();
    model::load_checkpoint(path_, e->staging());
    e->prepare();
    e->install({0});
    return e;
  }
  [[nodiscard]] const fs::path& path() const { return path_; }

  model::model_config config;
  std::shared_ptr<const model::tokenizer> tokens;

private:
  scratch_folder folder_{"millrace-test"};
  fs::path path_ = folder_.path();
};

/// A server in a thread of this process.
struct running_server {
  explicit running_server(const model_folder& m, std::size_t queue = 64, std::string token = {},
                          int port = 0)
    : chat(m.tokens->chat()),
      served{"small", m.tokens.get(), &chat, m.config.max_position_embeddings, m.config.vocab_size},
      service(m.loaded(), {queue}),
      http({.port = port, .token = std::move(token)}, service, served),
      thread([this] { http.run(); }) {}
  ~running_server() {
    http.stop();
    thread.join();
  }
  [[nodiscard]] std::string url() const {
    return "http://127.0.0.1:" + std::to_string(http.port());
  }
  [[nodiscard]] httplib::Client client() const {
    httplib::Client c(url());
    c.set_read_timeout(20);
    return c;
  }
  json post(const std::string& path, const json& body, int status = 200) const {
    const auto r = client().Post(path.c_str(), body.dump(), "application/json");
    REQUIRE(r);
    INFO(r->body);
    REQUIRE(r->status == status);
    return json::parse(r->body);
  }
  [[nodiscard]] bool idle_within(double seconds) {
    for (int i = 0; i < seconds * 100 && service.outstanding() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return service.outstanding() == 0;
  }

  model::chat_template chat;
  served_model served;
  generation::generation_service service;
  server http;
  std::thread thread;
};

rollout answered(generation::engine& e, const std::vector<std::int32_t>& prompt,
                 const sampling_params& sampling) {
  rollout r;
  r.id = {0, 0};
  r.prompt_length = static_cast<std::int32_t>(prompt.size());
  r.tokens = prompt;
  r.behaviour_logp.assign(prompt.size(), 0);
  r.versions.assign(prompt.size(), -1);
  e.submit({r, sampling});
  for (;;)
    for (auto& done : e.step())
      return done;
}

/// Two letters or digits of a text, which it can be cut at.
std::string ascii_piece(const std::string& text) {
  for (std::size_t i = text.size() / 4; i + 1 < text.size(); ++i)
    if (std::isalnum(static_cast<unsigned char>(text[i])) != 0
        && std::isalnum(static_cast<unsigned char>(text[i + 1])) != 0)
      return text.substr(i, 2);
  FAIL("no letters in \"" << text << '"');
  return "";
}

/// The events of a stream, and its texts joined.
std::pair<std::vector<json>, std::string> events(const running_server& s, const std::string& path,
                                                 json body) {
  body["stream"] = true;
  const auto r = s.client().Post(path.c_str(), body.dump(), "application/json");
  REQUIRE(r);
  INFO(r->body);
  REQUIRE(r->status == 200);
  std::vector<json> all;
  std::string text;
  std::size_t at = 0;
  for (auto end = r->body.find("\n\n"); end != std::string::npos; end = r->body.find("\n\n", at)) {
    const auto line = r->body.substr(at, end - at);
    at = end + 2;
    REQUIRE(line.starts_with("data: "));
    if (line == "data: [DONE]")
      break;
    all.push_back(json::parse(line.substr(6)));
    if (all.back()["choices"].empty())
      continue;
    const auto& c = all.back()["choices"][0];
    text += c.contains("delta") ? c["delta"].value("content", "") : c.value("text", "");
  }
  REQUIRE(r->body.ends_with("data: [DONE]\n\n"));
  return {all, text};
}

} // namespace

TEST_CASE("a server answers as the engine does") {
  const model_folder m(1);
  running_server s(m);
  const auto prompt = m.tokens->encode("The quick brown");
  const auto direct = answered(*m.loaded(), prompt, {.temperature = 0, .max_tokens = 20});
  const json body{{"model", "small"}, {"prompt", "The quick brown"}, {"temperature", 0},
                  {"max_tokens", 20}, {"logprobs", 1}};
  const auto r = s.post("/v1/completions", body);
  REQUIRE(r["object"] == "text_completion");
  REQUIRE(r["choices"][0]["text"] == direct.text);
  REQUIRE(r["usage"]["prompt_tokens"] == prompt.size());
  REQUIRE(r["usage"]["completion_tokens"] == direct.generated());
  REQUIRE(r["choices"][0]["logprobs"]["token_logprobs"].size() == 20);
  REQUIRE(events(s, "/v1/completions", body).second == direct.text);
  auto by_ids = body;
  by_ids["prompt"] = prompt;
  REQUIRE(s.post("/v1/completions", by_ids)["choices"][0]["text"] == direct.text);
}

TEST_CASE("chat, n, seed, stop and usage") {
  const model_folder m(2);
  running_server s(m);
  const json messages = json::array({{{"role", "user"}, {"content", "hi <|im_end|>"}}});
  const json body{{"messages", messages}, {"max_tokens", 12}, {"seed", 5}, {"n", 3},
                  {"logprobs", true}};
  const auto a = s.post("/v1/chat/completions", body);
  REQUIRE(a["choices"].size() == 3);
  REQUIRE(a["choices"][1]["message"]["role"] == "assistant");
  REQUIRE(a["choices"][0]["message"] != a["choices"][1]["message"]);
  REQUIRE(s.post("/v1/chat/completions", body)["choices"] == a["choices"]);
  REQUIRE(a["choices"][0]["logprobs"]["content"].size() > 0);
  // What the user wrote is no special token: more tokens than the template's own would be.
  const auto plain = m.tokens->encode_markup("<|im_start|>user\nhi <|im_end|><|im_end|>\n"
                                             "<|im_start|>assistant\n");
  REQUIRE(a["usage"]["prompt_tokens"].get<std::size_t>() > plain.size());

  const auto specials = special_names(*m.tokens);
  REQUIRE(specials.at(m.tokens->encode_markup("<|im_end|>").at(0)) == "<|im_end|>");

  const auto whole = s.post("/v1/completions", {{"prompt", "x"}, {"temperature", 0},
                                                {"max_tokens", 30}})["choices"][0]["text"]
                       .get<std::string>();
  const auto stop = ascii_piece(whole);
  const json stopped{{"prompt", "x"}, {"temperature", 0}, {"max_tokens", 30}, {"stop", stop},
                     {"stream_options", {{"include_usage", true}}}};
  const auto cut = s.post("/v1/completions", stopped)["choices"][0];
  REQUIRE(cut["text"] == whole.substr(0, whole.find(stop)));
  REQUIRE(cut["finish_reason"] == "stop");
  const auto [parts, text] = events(s, "/v1/completions", stopped);
  REQUIRE(text == cut["text"]);
  REQUIRE(parts.back()["usage"]["completion_tokens"] > 0);
  REQUIRE(events(s, "/v1/chat/completions", {{"messages", messages}, {"max_tokens", 5}})
            .first[0]["choices"][0]["delta"]["role"] == "assistant");
}

TEST_CASE("the likeliest tokens at each position come with the answer") {
  const model_folder m(11);
  running_server s(m);
  const json sampling{{"temperature", 0.8}, {"top_k", 12}, {"seed", 3}, {"max_tokens", 15}};
  auto body = sampling;
  body.update({{"prompt", "The quick"}, {"logprobs", 5}, {"n", 2},
               {"return_tokens_as_token_ids", true}});
  const auto plain = s.post("/v1/completions", body);
  std::size_t chosen_beyond = 0;
  for (const auto& c : plain["choices"]) {
    const auto& l = c["logprobs"];
    REQUIRE(l["top_logprobs"].size() == l["tokens"].size());
    for (std::size_t i = 0; i < l["tokens"].size(); ++i) {
      const auto& map = l["top_logprobs"][i];
      const auto name = l["tokens"][i].get<std::string>();
      REQUIRE(map.contains(name));
      REQUIRE(map[name] == l["token_logprobs"][i]);
      REQUIRE((map.size() == 5 || map.size() == 6));
      chosen_beyond += map.size() - 5;
      double total = 0, before = 0;
      std::size_t rank = 0;
      for (const auto& [token, logp] : map.items()) {
        total += std::exp(logp.get<double>());
        REQUIRE((rank++ == 0 || logp.get<double>() <= before));
        before = logp.get<double>();
      }
      REQUIRE(total < 1 + 1e-5);
    }
  }
  REQUIRE(chosen_beyond > 0);
  // As many as could be sampled make the whole.
  body = sampling;
  body.update({{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"logprobs", true},
               {"top_logprobs", 20}});
  const auto chat = s.post("/v1/chat/completions", body);
  for (const auto& t : chat["choices"][0]["logprobs"]["content"]) {
    double total = 0;
    for (const auto& l : t["top_logprobs"])
      total += std::exp(l["logprob"].get<double>());
    REQUIRE(t["top_logprobs"].size() == 12);
    REQUIRE(std::abs(total - 1) < 1e-5);
  }
  // Streamed, the same, piece by piece.
  auto streamed = json::array();
  for (const auto& e : events(s, "/v1/chat/completions", body).first) {
    REQUIRE(e["system_fingerprint"] == chat["system_fingerprint"]);
    for (const auto& t : e["choices"][0]["logprobs"]["content"])
      streamed.push_back(t);
  }
  REQUIRE(streamed == chat["choices"][0]["logprobs"]["content"]);
}

TEST_CASE("usage comes at a stream's end, where asked for") {
  const model_folder m(12);
  running_server s(m);
  const json body{{"prompt", {"a b", "c"}}, {"n", 2}, {"max_tokens", 7}, {"ignore_eos", true},
                  {"stream_options", {{"include_usage", true}}}};
  const auto whole = s.post("/v1/completions", body);
  REQUIRE(whole["usage"]["completion_tokens"] == 4 * 7);
  const auto parts = events(s, "/v1/completions", body).first;
  REQUIRE(parts.back()["usage"] == whole["usage"]);
  REQUIRE(parts.back()["choices"].empty());
  for (std::size_t i = 0; i + 1 < parts.size(); ++i)
    REQUIRE(parts[i].at("usage").is_null());
}

TEST_CASE("what is wrong with a request is said, with its parameter") {
  const model_folder m(3);
  running_server s(m);
  const auto refused = [&](const json& body, const char* parameter, int status = 400,
                           const char* path = "/v1/completions") {
    const auto e = s.post(path, body, status)["error"];
    REQUIRE(e["param"] == parameter);
    REQUIRE_FALSE(e["message"].get<std::string>().empty());
  };
  refused({{"max_tokens", 3}}, "prompt");
  refused({{"prompt", 3}}, "prompt");
  refused({{"prompt", {1, 99999}}}, "prompt");
  refused({{"prompt", ""}}, "prompt");
  refused({{"prompt", "x"}, {"temperature", -1}}, "temperature");
  refused({{"prompt", "x"}, {"max_tokens", 100000}}, "max_tokens");
  refused({{"prompt", "x"}, {"stop", 3}}, "stop");
  refused({{"prompt", "x"}, {"logit_bias", {{"3", 1}}}}, "logit_bias");
  refused({{"prompt", "x"}, {"temprature", 0}}, "temprature");
  refused({{"prompt", "x"}, {"model", "large"}}, "model", 404);
  refused({{"messages", json::array()}}, "messages", 400, "/v1/chat/completions");
  refused({{"messages", {{{"role", 3}}}}}, "messages", 400, "/v1/chat/completions");
  const auto broken = s.client().Post("/v1/completions", "{\"prompt\": ", "application/json");
  REQUIRE(broken->status == 400);
  REQUIRE(json::parse(broken->body)["error"]["type"] == "invalid_request_error");
  REQUIRE(s.client().Get("/nowhere")->status == 404);
  REQUIRE(s.client().Get("/health")->status == 200);
  REQUIRE(json::parse(s.client().Get("/v1/models")->body)["data"][0]["id"] == "small");
}

TEST_CASE("a full queue is 503, a missing token 401, and a client that goes away cancels") {
  const model_folder m(4);
  {
    running_server s(m, 2);
    s.post("/v1/completions", {{"prompt", "x"}, {"n", 3}}, 503);
    std::atomic<int> chunks{0};
    auto c = s.client();
    httplib::Request r;
    r.method = "POST";
    r.path = "/v1/completions";
    r.body = json{{"prompt", "x"}, {"stream", true}, {"ignore_eos", true}, {"logprobs", 1},
                  {"max_tokens", 3900}}.dump();
    r.content_receiver = [&](const char*, std::size_t, std::uint64_t, std::uint64_t) {
      return ++chunks < 2;
    };
    c.send(r);
    c.stop();
    REQUIRE(s.idle_within(10));
  }
  running_server guarded(m, 8, "secret");
  guarded.post("/v1/completions", {{"prompt", "x"}}, 401);
  auto c = guarded.client();
  c.set_bearer_token_auth("secret");
  REQUIRE(c.Get("/v1/models")->status == 200);
}

TEST_CASE("weights can be changed while it serves") {
  const model_folder one(5), two(6);
  running_server s(one);
  const auto prompt = one.tokens->encode("a b c");
  const json body{{"prompt", prompt}, {"temperature", 0}, {"max_tokens", 16}};
  s.post("/reload", {{"path", "/nowhere"}}, 400);
  s.post("/reload", {{"folder", "x"}}, 400);
  REQUIRE(s.post("/v1/completions", body)["choices"][0]["text"]
          == answered(*one.loaded(), prompt, {.temperature = 0, .max_tokens = 16}).text);
  REQUIRE(s.post("/reload", {{"path", two.path().string()}})["version"] == 1);
  REQUIRE(s.post("/v1/completions", body)["choices"][0]["text"]
          == answered(*two.loaded(), prompt, {.temperature = 0, .max_tokens = 16}).text);
}

TEST_CASE("behind a server tokens and versions are true over a change of weights") {
  const model_folder one(7), two(8);
  running_server s(two); // whatever it has at first
  const auto folder = one.path() / "published";
  const auto endpoint = generation::openai_endpoint::from(
    {{"endpoint", s.url()}, {"folder", folder.string()}});
  generation::engine_options o;
  o.max_batch = 4;
  const auto e = generation::make_openai_engine(endpoint, o, one.config, one.tokens);
  model::load_checkpoint(one.path(), e->staging());
  e->install({3});
  const auto prompt = one.tokens->encode("one two");
  const auto direct = answered(*one.loaded(), prompt, {.temperature = 0, .max_tokens = 24});
  auto r = answered(*e, prompt, {.temperature = 0, .max_tokens = 24});
  REQUIRE(r.tokens == direct.tokens);
  REQUIRE(r.text == direct.text);
  REQUIRE(r.finish == direct.finish);
  REQUIRE(r.versions.back() == 3);

  // Interrupted: every token is what its version's weights give, by log-prob.
  rollout long_one;
  long_one.id = {9, 0};
  long_one.prompt_length = static_cast<std::int32_t>(prompt.size());
  long_one.tokens = prompt;
  long_one.behaviour_logp.assign(prompt.size(), 0);
  long_one.versions.assign(prompt.size(), -1);
  e->submit({long_one, {.temperature = 0, .max_tokens = 3000, .ignore_eos = true}});
  while (e->step().empty() && e->partials()[0].generated() < 10) {
  }
  REQUIRE(e->partials().size() == 1);
  model::load_checkpoint(two.path(), e->staging());
  const auto report = e->install({4});
  REQUIRE(report.running == 1);
  std::vector<rollout> done;
  while (done.empty())
    done = e->step();
  REQUIRE(done[0].generated() == 3000);
  REQUIRE(done[0].oldest() == version{3});
  REQUIRE(done[0].youngest() == version{4});
  std::size_t change = prompt.size();
  while (done[0].versions[change] == 3)
    ++change;
  const std::vector<std::int32_t> so_far(done[0].tokens.begin(),
                                         done[0].tokens.begin() + static_cast<std::ptrdiff_t>(change));
  const auto rest = answered(*two.loaded(), so_far, {.temperature = 0, .max_tokens = 8,
                                                     .ignore_eos = true});
  for (std::size_t i = 0; i < 8; ++i)
    REQUIRE(rest.tokens[change + i] == done[0].tokens[change + i]);
  REQUIRE_FALSE(fs::exists(folder / "v3"));

  // Stop strings are this side's.
  r = answered(*e, prompt, {.temperature = 0, .max_tokens = 24});
  const auto stop = ascii_piece(r.text);
  const auto cut = answered(*e, prompt, {.temperature = 0, .max_tokens = 24, .stop = {stop}});
  REQUIRE(cut.finish == finish_reason::stop);
  REQUIRE(cut.text == r.text.substr(0, r.text.find(stop)));
  REQUIRE(s.idle_within(10));
}

TEST_CASE("a server that is started anew samples nothing before it has the right weights again") {
  const model_folder one(7), two(8);
  auto s = std::make_unique<running_server>(two);
  const int port = s->http.port();
  const auto renew = [&] {
    s.reset();
    s = std::make_unique<running_server>(two, 64, "", port);
  };
  const auto e = generation::make_openai_engine(
    generation::openai_endpoint::from({{"endpoint", s->url()},
                                       {"folder", (one.path() / "published").string()}}),
    {.max_batch = 4}, one.config, one.tokens);
  std::vector<std::string> said;
  log::set_screen([&](std::string_view line) { said.emplace_back(line); });
  model::load_checkpoint(one.path(), e->staging());
  e->install({3});
  const auto prompt = one.tokens->encode("one two");
  sampling_params sampling{.temperature = 0, .max_tokens = 3000, .ignore_eos = true};
  // In the middle of an answer, of which what has come is kept.
  rollout r;
  r.prompt_length = static_cast<std::int32_t>(prompt.size());
  r.tokens = prompt;
  r.behaviour_logp.assign(prompt.size(), 0);
  r.versions.assign(prompt.size(), -1);
  e->submit({r, sampling});
  while (e->partials().empty() || e->partials()[0].generated() < 10)
    REQUIRE(e->step().empty());
  renew();
  std::vector<rollout> done;
  while (done.empty())
    done = e->step();
  REQUIRE(done[0].tokens == answered(*one.loaded(), prompt, sampling).tokens);
  REQUIRE(done[0].oldest() == version{3});
  REQUIRE(said.size() == 2);
  REQUIRE(said[0].find("1 answers wait for it") != std::string::npos);
  REQUIRE(said[1].find("it is there again") != std::string::npos);
  // And while nothing ran, so that no connection broke.
  renew();
  sampling.max_tokens = 40;
  REQUIRE(answered(*e, prompt, sampling).tokens
          == answered(*one.loaded(), prompt, sampling).tokens);
  REQUIRE(said.size() == 4);
  REQUIRE(said[2].find("has it been started anew") != std::string::npos);
  // Away when new weights come: they are waited for.
  s.reset();
  model::load_checkpoint(two.path(), e->staging());
  e->install({4});
  REQUIRE(e->step().empty());
  s = std::make_unique<running_server>(one, 64, "", port);
  const auto last = answered(*e, prompt, sampling);
  REQUIRE(last.tokens == answered(*two.loaded(), prompt, sampling).tokens);
  REQUIRE(last.oldest() == version{4});
  log::set_screen({});
}

TEST_CASE("a server that stays away is an error with its address, after the time that was given") {
  const model_folder m(9);
  auto s = std::make_unique<running_server>(m);
  const auto url = s->url();
  const auto e = generation::make_openai_engine(
    generation::openai_endpoint::from({{"endpoint", url}, {"timeout_s", 1},
                                       {"folder", (m.path() / "x").string()}}),
    {.max_batch = 2}, m.config, m.tokens);
  model::load_checkpoint(m.path(), e->staging());
  e->install({0});
  s.reset();
  log::set_screen([](std::string_view) {});
  try {
    answered(*e, {1, 2}, {.max_tokens = 3});
    FAIL("no error");
  } catch (const std::runtime_error& error) {
    const std::string text = error.what();
    INFO(text);
    REQUIRE(text.find(url) != std::string::npos);
    REQUIRE(text.find("timeout_s") != std::string::npos);
  }
  REQUIRE(e->drain().size() == 1);
  log::set_screen({});
}

TEST_CASE("a request that is ended while it is only being made holds nobody up") {
  const model_folder m(9);
  std::atomic<bool> over{false};
  httplib::Server stalls; // once it has the weights
  stalls.Post("/reload", [](const httplib::Request&, httplib::Response& out) {
    out.set_content("{}", "application/json");
  });
  stalls.Post("/v1/completions", [&](const httplib::Request&, httplib::Response&) {
    while (!over)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  const auto url = "http://127.0.0.1:" + std::to_string(stalls.bind_to_any_port("127.0.0.1"));
  std::thread thread([&] { stalls.listen_after_bind(); });
  const auto e = generation::make_openai_engine(
    generation::openai_endpoint::from({{"endpoint", url}, {"timeout_s", 30},
                                       {"folder", (m.path() / "x").string()}}),
    {.max_batch = 2}, m.config, m.tokens);
  model::load_checkpoint(m.path(), e->staging());
  e->install({0});
  rollout r;
  r.prompt_length = 1;
  r.tokens = {1};
  r.behaviour_logp = {0};
  r.versions = {-1};
  e->submit({r, {.max_tokens = 3}});
  CHECK(e->step().empty());
  const auto began = std::chrono::steady_clock::now();
  e->install({1}); // the request is made anew,
  CHECK(e->drain().size() == 1); // and ended at once
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(15));
  over = true;
  stalls.stop();
  thread.join();
}

TEST_CASE("a server that isn't there, and parameters that can't be") {
  const model_folder m(9);
  const auto e = generation::make_openai_engine(
    generation::openai_endpoint::from({{"endpoint", "http://127.0.0.1:9"},
                                       {"folder", (m.path() / "x").string()}}),
    {.max_batch = 2}, m.config, m.tokens);
  model::load_checkpoint(m.path(), e->staging());
  REQUIRE_THROWS_AS(e->install({0}), std::runtime_error);
  REQUIRE_THROWS_AS(generation::openai_endpoint::from({{"endpoint", "x"}}), user_error);
  REQUIRE_THROWS_AS(generation::openai_endpoint::from({{"endpoint", "http://h"}}), user_error);
  REQUIRE_THROWS_AS(generation::openai_endpoint::from({{"endpiont", "http://h"}}), user_error);
}

TEST_CASE("serve: a body that is nested too deeply, packed, or nobody's to send is refused unread") {
  const model_folder m(1);
  const running_server open(m), guarded(m, 64, "secret");
  const auto status = [](const running_server& s, const std::string& body, const char* encoding,
                         const char* path = "/v1/completions") {
    auto c = s.client();
    httplib::Headers headers;
    if (*encoding != '\0')
      headers.emplace("Content-Encoding", encoding);
    const auto r = c.Post(path, headers, body, "application/json");
    REQUIRE(r);
    return r->status;
  };
  for (const int depth : {101, 1000, 100'000}) {
    const auto nested = std::string(static_cast<std::size_t>(depth), '[')
                        + std::string(static_cast<std::size_t>(depth), ']');
    for (const char* field : {"prompt", "logit_bias", "user"})
      REQUIRE(status(open, "{\"" + std::string(field) + "\": " + nested + "}", "") == 400);
    REQUIRE(status(open, "{\"path\": " + nested + "}", "", "/reload") == 400);
  }
  REQUIRE(status(open, "x", "gzip") == 415);
  REQUIRE(status(guarded, "x", "gzip") == 401);
  REQUIRE(status(guarded, "{}", "") == 401);
  REQUIRE(open.client().Get("/health")->status == 200);
  REQUIRE(guarded.client().Get("/health")->status == 200);
}
