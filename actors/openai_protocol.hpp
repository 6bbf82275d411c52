#pragma once

#include "rollout/sampler.hpp"
#include "runtime/messages.hpp"
#include "runtime/model/chat_template.hpp"
#include "runtime/model/tokenizer.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace millrace::openai {

using json = nlohmann::ordered_json;

/// What the client got wrong, as OpenAI's API says it: status, type, and the parameter's name.
struct api_error : std::runtime_error {
  api_error(int status, const std::string& message, std::string parameter = {},
            std::string type = "invalid_request_error", std::string code = {})
    : std::runtime_error(message), status(status), parameter(std::move(parameter)),
      type(std::move(type)), code(std::move(code)) {}
  int status;
  std::string parameter, type, code;
  [[nodiscard]] json body() const;
};

/// What is served, for reading requests.
struct served_model {
  std::string name;
  const model::tokenizer* tokens = nullptr;
  const model::chat_template* chat = nullptr; ///< null: only completions
  std::int64_t context = 0;                   ///< tokens of prompt and answer
  std::int64_t vocabulary = 0;
  std::map<std::int32_t, std::string> specials = {}; ///< special_names(); log-probs call them so
  std::uint64_t run = 0; ///< drawn when the server starts
};

/// The names of special tokens, which add no bytes to a text.
std::map<std::int32_t, std::string> special_names(const model::tokenizer& tokens);

/// An answer's "system_fingerprint": which server's weights sampled it, and how many times that
/// server had loaded some by then. A client can tell by it that a server is not the one that it
/// gave weights to (rollout/openai_engine.hpp does).
std::string system_fingerprint(std::uint64_t server, version weights);

/// A request for completions, of either kind, checked and tokenized.
struct completion_request {
  bool chat = false;
  std::vector<std::vector<std::int32_t>> prompts; ///< one, but for lists of prompts
  sampling_params sampling;
  bool has_seed = false; ///< else the server draws one
  std::int32_t n = 1;    ///< answers to each prompt
  bool stream = false;
  bool include_usage = false; ///< in a stream
  bool logprobs = false;
  std::int32_t top_logprobs = 0; ///< likely tokens told of each position; chat 20, else 5 at most
  bool tokens_as_ids = false; ///< log-probs name tokens "token_id:17" (vLLM's extension)
};

/// Throws api_error for what is malformed or not supported, naming the parameter.
completion_request read_completion(const std::string& body, const served_model& served, bool chat);

/// One answer's tokens, with what they say.
struct told_tokens {
  std::string text;
  std::vector<std::int32_t> tokens;
  std::vector<float> logp;
  /// By token, where asked for. Of the distribution really sampled from, as logp is: temperature,
  /// min_p, top_k and top_p applied. So there may be fewer than asked for; one, where greedy.
  std::vector<std::vector<generation::likely_token>> likeliest = {};
  std::int64_t offset = 0; ///< characters of the answer before these
};

/// Makes responses and chunks of one request.
class completion_writer {
public:
  completion_writer(const completion_request& request, const served_model& served, std::string id,
                    std::int64_t created)
    : request_(&request), served_(&served), id_(std::move(id)), created_(created) {}

  /// The weights that sampled what is written next.
  void sampled_by(version weights) { weights_ = weights; }

  /// A part of answer `index`, in a stream. `first`: its first part.
  [[nodiscard]] json chunk(std::int32_t index, const told_tokens& t, finish_reason finish,
                           bool first) const;
  /// One entry of a whole response's choices.
  [[nodiscard]] json choice(std::int32_t index, const told_tokens& t, finish_reason finish) const;
  [[nodiscard]] json response(json choices, std::int64_t prompt_tokens,
                              std::int64_t answer_tokens) const;
  /// The stream's last chunk, where usage was asked for.
  [[nodiscard]] json usage_chunk(std::int64_t prompt_tokens, std::int64_t answer_tokens) const;
  /// That these tokens add to an answer.
  [[nodiscard]] std::int64_t characters_of(std::span<const std::int32_t> tokens) const;

private:
  [[nodiscard]] json head(const char* object) const;
  [[nodiscard]] json logprobs(const told_tokens& t) const;
  [[nodiscard]] json chat_logprobs(const told_tokens& t) const;
  [[nodiscard]] json named(std::int32_t token, float logp) const;
  [[nodiscard]] std::string name_of(std::int32_t token, const std::string& bytes) const;

  const completion_request* request_;
  const served_model* served_;
  std::string id_;
  std::int64_t created_;
  version weights_ = {0};
};

} // namespace millrace::openai
