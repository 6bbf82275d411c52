#pragma once

#include "rollout/openai_engine.hpp"

#include <atomic>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace millrace::generation {

/// A token that a server has sampled.
struct served_token {
  std::int32_t token = -1;
  float logp = 0;
};

/// The connection broke, or who answers is not who was given the weights: the server may have been
/// started anew, with others.
struct server_lost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// One streamed completion. Calls `take` with tokens as they come, until `stopped`. `opened` is
/// given what hangs up, from any thread, and nothing when the connection is over. Returns what the
/// server gave as the end, `none` when it was stopped. `weights` is what request_reload() returned;
/// where it isn't empty, every part of the answer must show it. Throws server_lost, or
/// std::runtime_error when the server refuses or answers what makes no sense.
finish_reason stream_completion(const openai_endpoint& at, const std::string& weights,
                                const rollout& so_far, const sampling_params& sampling,
                                std::int32_t max_tokens,
                                const std::atomic<bool>& stopped,
                                const std::function<void(std::function<void()>)>& opened,
                                const std::function<void(std::span<const served_token>)>& take);

/// Has the server load a model folder. Returns the "system_fingerprint" of what it now has; empty
/// where it doesn't tell. Throws server_lost when it can't be reached, std::runtime_error when it
/// refuses.
std::string request_reload(const openai_endpoint& at, const std::filesystem::path& folder);

} // namespace millrace::generation
