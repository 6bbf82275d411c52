// `millrace serve`: what its clients see.

#include "test/actors/http_socket.hpp"
#include "test/actors/serving_fixture.hpp"
#include "test/patience.hpp"

#include <catch2/catch.hpp>
#include <httplib.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace millrace;
using namespace millrace::openai;
using test::answered, test::model_folder, test::running_server;
using test::ascii_piece;

namespace {

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

/// Its answers go on until they are cancelled.
class endless_engine final : public generation::engine {
public:
  void submit(generation_task task) override { running_.insert(task.so_far.id); }
  bool cancel(rollout_id id) override { return running_.erase(id) > 0; }
  std::vector<rollout> step() override {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return {};
  }
  std::vector<rollout> drain() override { return {}; }
  [[nodiscard]] std::vector<rollout> partials() const override { return {}; }
  [[nodiscard]] std::size_t running() const override { return running_.size(); }
  [[nodiscard]] std::size_t waiting() const override { return 0; }
  [[nodiscard]] std::int64_t outstanding_tokens() const override { return 0; }
  [[nodiscard]] std::vector<tensor_view> staging() override { return {}; }
  void prepare() override {}
  swap_report install(version) override { return {}; }
  [[nodiscard]] version current() const override { return {0}; }
  [[nodiscard]] generation::engine_statistics statistics() const override { return {}; }

private:
  std::set<rollout_id> running_;
};

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
  refused({{"messages", {{{"role", 3}}}}}, "messages[0].role", 400, "/v1/chat/completions");
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
    REQUIRE(s.falls_idle());
  }
  running_server guarded(m, 8, "secret");
  guarded.post("/v1/completions", {{"prompt", "x"}}, 401);
  auto c = guarded.client();
  c.set_bearer_token_auth("secret");
  REQUIRE(c.Get("/v1/models")->status == 200);
}

TEST_CASE("an answer that fails has a failure's status; a stream tells of it and ends") {
  const model_folder m(14);
  running_server s(m, 64, {}, 0, m.failing());
  const json messages = json::array({{{"role", "user"}, {"content", "hi"}}});
  for (const auto& [path, body] : {
         std::pair<std::string, json>{"/v1/completions", {{"prompt", {"a", "b"}}, {"n", 2}}},
         {"/v1/chat/completions", {{"messages", messages}}}}) {
    const auto error = s.post(path, body, 500)["error"];
    REQUIRE(error["type"] == "server_error");
    REQUIRE_FALSE(error["message"].get<std::string>().empty());
    auto streamed = body;
    streamed["stream"] = true;
    const auto r = s.client().Post(path.c_str(), streamed.dump(), "application/json");
    REQUIRE(r);
    REQUIRE(r->status == 200);
    REQUIRE(r->body == "data: " + json{{"error", error}}.dump() + "\n\ndata: [DONE]\n\n");
    REQUIRE(s.falls_idle());
  }
}

TEST_CASE("a request without a body is answered, not waited for") {
  const model_folder m(15);
  running_server s(m);
  test::http_socket client(s.http.port());
  client.send("POST /reload HTTP/1.1\r\nHost: localhost\r\n\r\n");
  REQUIRE(client.receive().status == 411);
}

TEST_CASE("a client that goes away cancels an answer that was to come whole") {
  const model_folder m(15);
  running_server s(m, 64, {}, 0, std::make_unique<endless_engine>());
  {
    test::http_socket client(s.http.port());
    const auto body = json{{"prompt", "x"}}.dump();
    client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                + std::to_string(body.size()) + "\r\n\r\n" + body);
    REQUIRE(test::comes_true([&] { return s.service.outstanding() > 0; }));
  }
  REQUIRE(s.falls_idle());
}

TEST_CASE("weights can be changed while it serves") {
  const model_folder one(5), two(6);
  running_server s(one);
  const auto prompt = one.tokens->encode("a b c");
  const json body{{"prompt", prompt}, {"temperature", 0}, {"max_tokens", 16}};
  s.post("/reload", {{"path", "/nowhere"}}, 400);
  s.post("/reload", {{"folder", "x"}}, 400);
  const model_folder diverged(16);
  const auto e = diverged.engine();
  model::load_checkpoint(diverged.path(), e->staging());
  test::spoil(e->staging());
  model::save_checkpoint(diverged.path(), diverged.config, e->staging());
  const auto refusal = s.post("/reload", {{"path", diverged.path().string()}}, 400)["error"];
  REQUIRE(refusal["message"].get<std::string>().find("\"model.norm.weight\"") != std::string::npos);
  REQUIRE(s.post("/v1/completions", body)["choices"][0]["text"]
          == answered(*one.loaded(), prompt, {.temperature = 0, .max_tokens = 16}).text);
  REQUIRE(s.post("/reload", {{"path", two.path().string()}})["version"] == 1);
  REQUIRE(s.post("/v1/completions", body)["choices"][0]["text"]
          == answered(*two.loaded(), prompt, {.temperature = 0, .max_tokens = 16}).text);
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
