#pragma once

#include "rollout/openai_engine.hpp"

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace millrace::generation {

/// A token that a server has sampled.
struct served_token {
  std::int32_t token = -1;
  float logp = 0;
};

/// One streamed completion. Calls `take` with tokens as they come, until `stopped`. `opened` is
/// given what hangs up, from any thread, and nothing when the connection is over. Returns what the
/// server gave as the end, `none` when it was stopped. Throws
/// std::runtime_error when the server can't be reached, refuses, or answers what makes no sense.
finish_reason stream_completion(const openai_endpoint& at, const rollout& so_far,
                                const sampling_params& sampling, std::int32_t max_tokens,
                                const std::atomic<bool>& stopped,
                                const std::function<void(std::function<void()>)>& opened,
                                const std::function<void(std::span<const served_token>)>& take);

/// Has the server load a model folder. Throws std::runtime_error.
void request_reload(const openai_endpoint& at, const std::filesystem::path& folder);

} // namespace millrace::generation
