#include "rollout/openai_request.hpp"

#include "runtime/clock.hpp"
#include "runtime/error.hpp"
#include "runtime/random.hpp"
#include "runtime/without_sigpipe.hpp"

#include <httplib.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <stdexcept>

namespace millrace::generation {
namespace {

using nlohmann::json;

[[noreturn]] void fail(const openai_endpoint& at, const std::string& what) {
  throw std::runtime_error("generator at " + at.url + ": " + what);
}

[[noreturn]] void lose(const openai_endpoint& at, const std::string& what) {
  throw server_lost("generator at " + at.url + ": " + what);
}

/// What the library's error means. `silent_s`: since the last sign of life.
[[noreturn]] void lose(const openai_endpoint& at, const std::string& path, httplib::Error error,
                       double silent_s) {
  const auto patience = std::floor(at.timeout_s); // the library is given whole seconds
  if (error == httplib::Error::Connection || error == httplib::Error::ConnectionTimeout)
    lose(at, "nobody takes a connection there");
  if (error == httplib::Error::Read && silent_s >= patience)
    lose(at, path + ": it took the request, but said nothing for "
               + std::to_string(static_cast<int>(patience)) + " s");
  lose(at, path + ": the connection broke (" + httplib::to_string(error) + ")");
}

httplib::Client client_of(const openai_endpoint& at) {
  httplib::Client c(at.url);
  const auto whole = static_cast<time_t>(at.timeout_s);
  c.set_connection_timeout(std::min<time_t>(whole, 10));
  c.set_read_timeout(whole);
  c.set_write_timeout(whole);
  c.set_tcp_nodelay(true);
  if (!at.token.empty())
    c.set_bearer_token_auth(at.token.c_str());
  return c;
}

json body_of(const openai_endpoint& at, const rollout& r, const sampling_params& s,
             std::int32_t max_tokens) {
  // Where it goes on after an interruption it must not draw the same again.
  const auto draw = sampling_draw(s.seed, r.prompt_id, r.id.sample,
                                  static_cast<std::int64_t>(r.tokens.size()));
  json body{{"prompt", r.tokens}, {"max_tokens", max_tokens}, {"temperature", s.temperature},
            {"top_p", s.top_p}, {"stream", true}, {"logprobs", 0},
            {"return_tokens_as_token_ids", true},
            {"seed", static_cast<std::int64_t>(draw * 9007199254740992.0)}};
  if (s.top_k > 0)
    body["top_k"] = s.top_k;
  if (s.min_p > 0)
    body["min_p"] = s.min_p;
  if (s.ignore_eos)
    body["ignore_eos"] = true;
  if (s.min_tokens > r.generated())
    body["min_tokens"] = s.min_tokens - r.generated();
  if (!at.model.empty())
    body["model"] = at.model;
  return body;
}

/// Takes a stream's bytes apart into events.
class event_reader {
public:
  event_reader(const openai_endpoint& at, const std::string& weights,
               const std::function<void(std::span<const served_token>)>& take)
    : at_(at), weights_(weights), take_(take) {}

  void add(const char* data, std::size_t size) {
    text_.append(data, size);
    for (auto end = text_.find('\n'); end != text_.npos; end = text_.find('\n')) {
      auto line = text_.substr(0, end);
      text_.erase(0, end + 1);
      if (line.ends_with('\r'))
        line.pop_back();
      if (line.starts_with("data:"))
        event(line.substr(line.find_first_not_of(' ', 5) == line.npos
                            ? line.size() : line.find_first_not_of(' ', 5)));
    }
    if (text_.size() > (std::size_t{1} << 24))
      fail(at_, "a line of its stream has no end");
  }
  [[nodiscard]] finish_reason end() const { return end_; }
  /// What is no event: the body of an error.
  [[nodiscard]] const std::string& rest() const { return text_; }

private:
  void event(const std::string& data) {
    if (data == "[DONE]" || data.empty())
      return;
    const auto e = json::parse(data, nullptr, false);
    if (e.is_object() && e.contains("error")) // it is stopping, say
      lose(at_, "it reports " + e["error"].dump());
    if (!e.is_object() || !e.contains("choices") || !e["choices"].is_array())
      fail(at_, "its stream has an event that makes no sense: " + data.substr(0, 200));
    if (!weights_.empty() && e.value("system_fingerprint", json()) != json(weights_))
      lose(at_, "it answers with weights " + e.value("system_fingerprint", json()).dump()
                  + ", but \"" + weights_ + "\" were given to it; has it been started anew, or "
                  "does another program give it weights?");
    for (const auto& c : e["choices"])
      choice(c);
  }

  void choice(const json& c) {
    const auto none = json::object();
    const auto& p = c.is_object() && c.contains("logprobs") && c["logprobs"].is_object()
                      ? c["logprobs"] : none;
    if (p.contains("tokens") && p.contains("token_logprobs")) {
      const auto &names = p["tokens"], &values = p["token_logprobs"];
      if (!names.is_array() || !values.is_array() || names.size() != values.size())
        fail(at_, "its tokens and log-probs are not equally many");
      std::vector<served_token> tokens;
      for (std::size_t i = 0; i < names.size(); ++i) {
        const auto name = names[i].is_string() ? names[i].get<std::string>() : std::string();
        if (!name.starts_with("token_id:") || !values[i].is_number())
          fail(at_, "it names a token " + names[i].dump() + " with the log-prob "
                      + values[i].dump() + "; expected \"token_id:N\" "
                      "(return_tokens_as_token_ids) and a number");
        const auto logp = values[i].get<float>();
        const auto id = std::strtol(name.c_str() + 9, nullptr, 10);
        if (!std::isfinite(logp) || logp > 1e-3F)
          fail(at_, "it gives the log-prob " + values[i].dump());
        tokens.push_back({static_cast<std::int32_t>(id), std::min(logp, 0.0F)});
      }
      take_(tokens);
    }
    if (c.is_object() && c.contains("finish_reason") && c["finish_reason"].is_string())
      end_ = c["finish_reason"] == "length" ? finish_reason::length : finish_reason::stop;
  }

  const openai_endpoint& at_;
  const std::string& weights_;
  const std::function<void(std::span<const served_token>)>& take_;
  std::string text_;
  finish_reason end_ = finish_reason::none;
};

} // namespace

finish_reason stream_completion(const openai_endpoint& at, const std::string& weights,
                                const rollout& so_far, const sampling_params& sampling,
                                std::int32_t max_tokens,
                                const std::atomic<bool>& stopped,
                                const std::function<void(std::function<void()>)>& opened,
                                const std::function<void(std::span<const served_token>)>& take) {
  const without_sigpipe guard; // the library writes without asking for none
  auto client = client_of(at);
  event_reader reader(at, weights, take);
  std::exception_ptr problem;
  httplib::Request request;
  request.method = "POST";
  request.path = "/v1/completions";
  request.body = body_of(at, so_far, sampling, max_tokens).dump();
  request.set_header("Content-Type", "application/json");
  const real_clock time;
  auto heard_at = time.now();
  request.content_receiver = [&](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
    heard_at = time.now();
    try {
      reader.add(data, size);
    } catch (...) {
      problem = std::current_exception();
    }
    return !problem && !stopped;
  };
  opened([&client] { client.stop(); });
  const auto result = client.send(request);
  opened({});
  if (problem)
    std::rethrow_exception(problem);
  if (stopped)
    return finish_reason::none;
  if (!result)
    lose(at, request.path, result.error(), time.now() - heard_at);
  if (result->status != 200)
    fail(at, "status " + std::to_string(result->status) + ": "
               + (result->body.empty() ? reader.rest() : result->body).substr(0, 300));
  if (reader.end() == finish_reason::none)
    lose(at, "its stream ended before the answer did");
  return reader.end();
}

std::string request_reload(const openai_endpoint& at, const std::filesystem::path& folder) {
  const without_sigpipe guard;
  auto client = client_of(at);
  const json body{{at.reload_field, folder.string()}};
  const real_clock time;
  const auto asked_at = time.now();
  const auto result = client.Post(at.reload.c_str(), body.dump(), "application/json");
  if (!result)
    lose(at, at.reload, result.error(), time.now() - asked_at);
  if (result->status != 200)
    fail(at, at.reload + ": status " + std::to_string(result->status) + ": "
               + result->body.substr(0, 300));
  const auto said = json::parse(result->body, nullptr, false);
  const auto name = said.is_object() ? said.value("system_fingerprint", json()) : json();
  return name.is_string() ? name.get<std::string>() : std::string();
}

} // namespace millrace::generation
