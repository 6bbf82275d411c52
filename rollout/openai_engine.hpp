#pragma once

#include "rollout/engine.hpp"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <memory>
#include <string>

namespace millrace::generation {

/// generator.backend.name of this engine.
inline constexpr const char* openai_backend = "openai";

/// Where another engine answers OpenAI's API, and how it takes new weights.
struct openai_endpoint {
  std::string url;   ///< http://HOST:PORT
  std::string token; ///< shown as a bearer token; empty: none
  std::string model; ///< its name there; empty: the only one
  /// Each version is saved here, for the server to load: a folder that both machines see.
  std::filesystem::path folder;
  std::string reload = "/reload"; ///< called with {reload_field: FOLDER}
  std::string reload_field = "path"; ///< what it calls that: "model_path" in SGLang
  double timeout_s = 60;          ///< without a sign of life

  /// Of generator.backend.params. Throws user_error naming the parameter.
  static openai_endpoint from(const nlohmann::json& params);
};

/// An engine that has its tokens made by a server with OpenAI's API (millrace serve; vLLM with
/// --logprobs-mode processed_logprobs). Every rollout is a streamed request of its own, of token
/// ids, with log-probs, whose tokens are named by id (return_tokens_as_token_ids).
///
/// install() interrupts the requests, saves the staged weights, has the server load them, and goes
/// on from the tokens that have come: so each token's version is true. A request that fails is
/// tried again from where it was. A server that isn't up yet, went away, took a request and said
/// nothing for timeout_s, or answers with a system_fingerprint other than that of the weights it was
/// given (millrace serve sends one), is given the current weights first, as soon as it takes them;
/// the log says both. step() throws std::runtime_error when that takes longer than timeout_s, or one
/// answer fails three times in a row.
std::unique_ptr<engine> make_openai_engine(const openai_endpoint& endpoint,
                                           const engine_options& options,
                                           const model::model_config& config,
                                           std::shared_ptr<const model::tokenizer> tokens);

} // namespace millrace::generation
