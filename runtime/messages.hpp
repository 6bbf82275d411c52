#pragma once

// Every message that crosses between actors, in the order in which the stream uses them. Plain
// structs; each says who makes it and who takes it. Fields are in SI units (seconds, bytes).
// A new message: a struct here with its inspect, a line in actors/message_types.hpp.

#include "runtime/ids.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

/// A question with what is needed to judge an answer. Made by a prompt source, read by the
/// rollout controller and the reward workers.
struct prompt {
  std::int64_t id = 0; ///< position in its source: the key of its random streams
  std::string text;    ///< what the model reads
  std::string answer;  ///< what the reward compares with; may be empty where the reward needs none
};

/// How to sample. Part of every task, so that training and evaluation share one engine.
struct sampling_params {
  float temperature = 1.0F; ///< 0 means greedy
  float top_p = 1.0F;       ///< 1 means off
  float min_p = 0.0F;       ///< 0 means off
  std::int32_t top_k = 0;   ///< 0 means off
  std::int32_t max_tokens = 0; ///< generated tokens at most
  std::int32_t min_tokens = 0; ///< end-of-sequence tokens are not sampled before this many
  bool ignore_eos = false;     ///< go on to max_tokens whatever is sampled (benchmarks)
  std::uint64_t seed = 0;      ///< with (prompt id, sample, position) keys the random stream
};

enum class finish_reason : std::uint8_t { none, stop, length, cancelled };

/// One answer to a prompt, from its first sampled token on. A generator fills it token by token,
/// so it is at every moment a valid partial rollout that another generator can continue.
/// The four arrays have one entry per token of prompt + answer.
struct rollout {
  rollout_id id;
  std::int32_t attempt = 0;   ///< grows when the rollout is handed out again
  std::int64_t prompt_id = 0; ///< copied from the prompt
  std::int32_t prompt_length = 0;
  std::vector<std::int32_t> tokens;
  std::vector<float> behaviour_logp; ///< log μ of the distribution really sampled from; 0 if none
  std::vector<std::int32_t> versions; ///< that sampled the token; −1 for tokens not sampled
  finish_reason finish = finish_reason::none;
  std::string text;  ///< the answer as text, set when finished
  float reward = 0;     ///< set by the reward worker
  bool correct = false; ///< set by the reward worker
  double started_at = 0;  ///< seconds on the run's clock
  double finished_at = 0;

  [[nodiscard]] std::int32_t generated() const {
    return static_cast<std::int32_t>(tokens.size()) - prompt_length;
  }
  /// Version of the oldest sampled token, or no_version when none was sampled yet.
  [[nodiscard]] version oldest() const {
    std::int32_t v = -1;
    for (auto x : versions)
      if (x >= 0 && (v < 0 || x < v))
        v = x;
    return {v};
  }
  /// Version of the youngest sampled token, or no_version.
  [[nodiscard]] version youngest() const {
    std::int32_t v = -1;
    for (auto x : versions)
      v = x > v ? x : v;
    return {v};
  }
};

/// rollout controller → generator: start (or go on with) this rollout.
struct generation_task {
  rollout so_far; ///< prompt tokens, and what an earlier attempt had sampled
  sampling_params sampling;
};

/// What the generator reports about one weight swap.
struct swap_report {
  version from, to;
  double pause_s = 0;   ///< swap + re-prefill: nothing was decoded
  double total_s = 0;   ///< from the notice of the version to its first token
  double pull_s = 0;    ///< wire
  double verify_s = 0;  ///< checksums
  double prefill_s = 0; ///< the re-prefill's part of the pause
  std::int64_t bytes = 0;
  std::int64_t reprefilled_tokens = 0;
  std::int64_t running = 0; ///< sequences that were interrupted
};

/// A finished group with its rewards. rollout controller → replay buffer.
struct scored_group {
  std::int64_t group = 0;
  prompt question;
  std::vector<rollout> rollouts;
};

/// rollout controller → reward worker: judge this answer.
struct score_request {
  rollout_id id;
  prompt question;
  std::string text; ///< the answer
  finish_reason finish = finish_reason::none;
};

/// reward worker → rollout controller.
struct score {
  rollout_id id;
  float reward = 0;
  bool correct = false; ///< what accuracy counts, apart from how it is paid
};

/// replay buffer → rollout controller: may I hand these groups to the trainer at this version?
struct claim_request {
  version training_from;
  std::vector<std::int64_t> take; ///< group ids, oldest first
  std::vector<std::int64_t> drop; ///< groups beyond η that the buffer will not hand out
};

/// rollout controller → replay buffer.
struct claim_reply {
  version published; ///< what the controller knows; a claim for an older version is refused
  std::vector<std::int64_t> granted; ///< all groups of the batch for this version, so far
};

// -- inspection: what is serialized, for every struct above ---------------------------------------

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, prompt& x) {
  return f(x.id, x.text, x.answer);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, sampling_params& x) {
  return f(x.temperature, x.top_p, x.min_p, x.top_k, x.max_tokens, x.min_tokens, x.ignore_eos,
           x.seed);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rollout& x) {
  return f(x.id, x.attempt, x.prompt_id, x.prompt_length, x.tokens, x.behaviour_logp, x.versions,
           x.finish, x.text, x.reward, x.correct, x.started_at, x.finished_at);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, generation_task& x) {
  return f(x.so_far, x.sampling);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, swap_report& x) {
  return f(x.from, x.to, x.pause_s, x.total_s, x.pull_s, x.verify_s, x.prefill_s, x.bytes,
           x.reprefilled_tokens, x.running);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, scored_group& x) {
  return f(x.group, x.question, x.rollouts);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, score_request& x) {
  return f(x.id, x.question, x.text, x.finish);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, score& x) {
  return f(x.id, x.reward, x.correct);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, claim_request& x) {
  return f(x.training_from, x.take, x.drop);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, claim_reply& x) {
  return f(x.published, x.granted);
}

} // namespace millrace
