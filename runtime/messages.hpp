#pragma once

// Every message that crosses between actors, in the order in which the stream uses them. Plain
// structs; each says who makes it and who takes it. Fields are in SI units (seconds, bytes).
// A new message: a struct here with its inspect, a line in actors/message_types.cpp.

#include "runtime/ids.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// A question with what is needed to judge an answer. Made by a prompt source, read by the
/// rollout controller and the reward workers.
struct prompt {
  std::int64_t id = 0; ///< position in its source: the key of its random streams
  std::string text;    ///< what the model reads
  std::string answer;  ///< what the reward compares with; may be empty where the reward needs none

  template <class I>
  friend typename I::result_type inspect(I& f, prompt& x) {
    return f(x.id, x.text, x.answer);
  }
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
  std::vector<std::string> stop; ///< strings that end an answer; its text ends before them

  template <class I>
  friend typename I::result_type inspect(I& f, sampling_params& x) {
    return f(x.temperature, x.top_p, x.min_p, x.top_k, x.max_tokens, x.min_tokens, x.ignore_eos,
             x.seed, x.stop);
  }
};

enum class finish_reason : std::uint8_t { none, stop, length, cancelled };
constexpr std::string_view to_string(finish_reason r) {
  constexpr std::string_view names[] = {"none", "stop", "length", "cancelled"};
  return names[static_cast<std::size_t>(r)];
}

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

  template <class I>
  friend typename I::result_type inspect(I& f, rollout& x) {
    return f(x.id, x.attempt, x.prompt_id, x.prompt_length, x.tokens, x.behaviour_logp,
             x.versions, x.finish, x.text, x.reward, x.correct, x.started_at, x.finished_at);
  }
};

/// rollout controller → generator: start (or go on with) this rollout.
struct generation_task {
  rollout so_far; ///< prompt tokens, and what an earlier attempt had sampled
  sampling_params sampling;

  template <class I>
  friend typename I::result_type inspect(I& f, generation_task& x) {
    return f(x.so_far, x.sampling);
  }
};

/// What the generator reports about one weight swap.
struct swap_report {
  version from, to;
  double pause_s = 0;   ///< swap + re-prefill: nothing was decoded
  double total_s = 0;   ///< from the notice of the version to the end of the swap
  double pull_s = 0;    ///< wire
  double verify_s = 0;  ///< checksums
  double load_s = 0;    ///< copies into the generator's tensors, and their layout for computing
  double quantise_s = 0;
  double prefill_s = 0; ///< the re-prefill's part of the pause
  std::int64_t bytes = 0;
  std::int64_t reprefilled_tokens = 0;
  std::int64_t running = 0; ///< sequences that were interrupted

  template <class I>
  friend typename I::result_type inspect(I& f, swap_report& x) {
    return f(x.from, x.to, x.pause_s, x.total_s, x.pull_s, x.verify_s, x.load_s, x.quantise_s,
             x.prefill_s, x.bytes, x.reprefilled_tokens, x.running);
  }
};

/// A finished group with its rewards. rollout controller → replay buffer.
struct scored_group {
  std::int64_t group = 0;
  prompt question;
  std::vector<rollout> rollouts;

  template <class I>
  friend typename I::result_type inspect(I& f, scored_group& x) {
    return f(x.group, x.question, x.rollouts);
  }
};

/// rollout controller → reward worker: judge this answer.
struct score_request {
  rollout_id id;
  prompt question;
  std::string text; ///< the answer
  finish_reason finish = finish_reason::none;

  template <class I>
  friend typename I::result_type inspect(I& f, score_request& x) {
    return f(x.id, x.question, x.text, x.finish);
  }
};

/// reward worker → rollout controller.
struct score {
  rollout_id id;
  float reward = 0;
  bool correct = false; ///< what accuracy counts, apart from how it is paid
  std::string failure;  ///< why it could not be judged; empty: it was

  template <class I>
  friend typename I::result_type inspect(I& f, score& x) {
    return f(x.id, x.reward, x.correct, x.failure);
  }
};

/// replay buffer → rollout controller: may I hand these groups to the trainer at this version?
struct claim_request {
  version training_from;
  std::vector<std::int64_t> take; ///< group ids, oldest first
  std::vector<std::int64_t> drop; ///< groups beyond η that the buffer will not hand out

  template <class I>
  friend typename I::result_type inspect(I& f, claim_request& x) {
    return f(x.training_from, x.take, x.drop);
  }
};

/// rollout controller → replay buffer.
struct claim_reply {
  version published; ///< what the controller knows; a claim for an older version is refused
  std::vector<std::int64_t> granted; ///< all groups of the batch for this version, so far
  std::vector<std::int64_t> ended;   ///< of those asked for: trained or dropped already

  template <class I>
  friend typename I::result_type inspect(I& f, claim_reply& x) {
    return f(x.published, x.granted, x.ended);
  }
};

/// A rollout that has begun and is not in the replay buffer yet: running, or finished and waiting
/// for its reward or its siblings.
struct in_flight_rollout {
  rollout_id id;
  version oldest = no_version;   ///< that a token of it may have
  version youngest = no_version; ///< that its generator samples with; no_version: none has it

  template <class I>
  friend typename I::result_type inspect(I& f, in_flight_rollout& x) {
    return f(x.id, x.oldest, x.youngest);
  }
};

/// rollout controller → replay buffer, when it asks (over_bound: wait).
struct in_flight_reply {
  std::vector<in_flight_rollout> rollouts;

  template <class I>
  friend typename I::result_type inspect(I& f, in_flight_reply& x) {
    return f(x.rollouts);
  }
};

/// rollout controller → generator. Answered when taken: until then they are sent again.
struct assign_tasks {
  std::vector<generation_task> tasks;

  template <class I>
  friend typename I::result_type inspect(I& f, assign_tasks& x) {
    return f(x.tasks);
  }
};

/// rollout controller → generator: their groups are closed, or others do them.
struct cancel_rollouts {
  std::vector<rollout_id> ids;

  template <class I>
  friend typename I::result_type inspect(I& f, cancel_rollouts& x) {
    return f(x.ids);
  }
};

/// generator → rollout controller. Answered when noted: until then they are kept and sent again.
struct rollouts_finished {
  std::vector<rollout> rollouts;

  template <class I>
  friend typename I::result_type inspect(I& f, rollouts_finished& x) {
    return f(x.rollouts);
  }
};

/// generator → rollout controller, every so many tokens: what to go on from should it die.
struct rollouts_progress {
  std::vector<rollout> rollouts;

  template <class I>
  friend typename I::result_type inspect(I& f, rollouts_progress& x) {
    return f(x.rollouts);
  }
};

/// generator → rollout controller: it stops, or can't do these; partial rollouts go on elsewhere.
struct rollouts_returned {
  std::vector<rollout> rollouts;
  std::string reason;
  std::string leaving; ///< the generator's name when it stops and these are all it had; else empty

  template <class I>
  friend typename I::result_type inspect(I& f, rollouts_returned& x) {
    return f(x.rollouts, x.reason, x.leaving);
  }
};

/// rollout controller → reward worker, which answers with score_results for the same rollouts.
struct score_batch {
  std::vector<score_request> requests;

  template <class I>
  friend typename I::result_type inspect(I& f, score_batch& x) {
    return f(x.requests);
  }
};

/// reward worker → rollout controller.
struct score_results {
  std::vector<score> scores;

  template <class I>
  friend typename I::result_type inspect(I& f, score_results& x) {
    return f(x.scores);
  }
};

/// rollout controller → replay buffer. Answered when they are in.
struct buffer_groups {
  std::vector<scored_group> groups;

  template <class I>
  friend typename I::result_type inspect(I& f, buffer_groups& x) {
    return f(x.groups);
  }
};

/// filter (a plugin's actor) → rollout controller, for the groups that it was shown as
/// buffer_groups: those that are not to be trained on, with the reason of each.
struct filter_verdict {
  std::vector<std::int64_t> vetoed;
  std::vector<std::string> reasons; ///< "NAME: text"

  template <class I>
  friend typename I::result_type inspect(I& f, filter_verdict& x) {
    return f(x.vetoed, x.reasons);
  }
};

/// trainer → replay buffer: give me the batch for the step from this version. Asked again until
/// answered; the same version always gets the same batch.
struct batch_request {
  version training_from;

  template <class I>
  friend typename I::result_type inspect(I& f, batch_request& x) {
    return f(x.training_from);
  }
};

/// trainer → rollout controller, before a step (old_logits "interrupt"): what is in flight.
struct in_flight_query {
  version since; ///< only rollouts with a token of this version or a younger one

  template <class I>
  friend typename I::result_type inspect(I& f, in_flight_query& x) {
    return f(x.since);
  }
};

/// Of a rollout whose old log-probs the trainer wants: what shows that both mean the same tokens.
struct asked_rollout {
  rollout_id id;
  std::uint64_t fingerprint = 0;   ///< XXH3 of its tokens
  std::int32_t trained_tokens = 0; ///< the others are context, or too old

  template <class I>
  friend typename I::result_type inspect(I& f, asked_rollout& x) {
    return f(x.id, x.fingerprint, x.trained_tokens);
  }
};

/// trainer → old-logit actor: the log-probs of a batch's rollouts, which that one was sent when they
/// were delivered. Asked once more, with these groups whole, when it says that it lacks some.
struct old_logit_question {
  version training_from;
  std::vector<asked_rollout> rollouts; ///< in the batch's order
  std::vector<scored_group> missed;    ///< old_logit_supply::unknown of the first answer

  template <class I>
  friend typename I::result_type inspect(I& f, old_logit_question& x) {
    return f(x.training_from, x.rollouts, x.missed);
  }
};

/// Old log-probs of a rollout's tokens, one entry per token of prompt + answer; 1 where there is none
/// (NaN doesn't survive CAF's serialization). old-logit actor → trainer.
struct old_log_prob_list {
  rollout_id id;
  std::vector<float> logp;

  template <class I>
  friend typename I::result_type inspect(I& f, old_log_prob_list& x) {
    return f(x.id, x.logp);
  }
};

/// What a step is given for its old log-probs beside the batch. rollout controller (interrupt) or
/// old-logit actor (dedicated) → trainer → training worker.
struct old_logit_supply {
  std::vector<rollout> in_flight; ///< not in the batch: partial, or waiting for training
  version oldest_sampling = no_version; ///< no generator samples with an older version any more
  std::vector<old_log_prob_list> known; ///< of the batch's rollouts
  double hidden_s = 0; ///< that computing them took off the trainer's path
  double waited_s = 0; ///< that the trainer waited for this
  std::vector<std::int64_t> unknown; ///< groups that the old-logit actor lacks: no answer yet

  template <class I>
  friend typename I::result_type inspect(I& f, old_logit_supply& x) {
    return f(x.in_flight, x.oldest_sampling, x.known, x.hidden_s, x.waited_s, x.unknown);
  }
};

/// replay buffer → trainer: B rollouts, oldest first. Tokens older than η carry no_version here:
/// they are context like the prompt, and no loss sees them (`over_bound: mask`).
struct train_batch {
  version training_from;
  std::vector<scored_group> groups;
  std::int64_t masked_tokens = 0;  ///< that were sampled, and are too old
  std::int64_t dropped_rollouts = 0; ///< since the last batch, for being too old
  old_logit_supply supply; ///< put in by the trainer on the way to its worker

  template <class I>
  friend typename I::result_type inspect(I& f, train_batch& x) {
    return f(x.training_from, x.groups, x.masked_tokens, x.dropped_rollouts, x.supply);
  }
};

/// training worker → trainer → rollout controller and weight receivers: version `v` can be pulled as
/// the manifest says (its bytes; weightsync/manifest.hpp reads them).
struct weights_published {
  version v;
  std::string manifest;
  double at = 0; ///< seconds on the publisher's clock
  /// Of the same weights in full precision, for an old-logit node; from the training worker to the
  /// trainer only, which tells that publication's publisher. Empty: there is none of this version.
  std::string exact_manifest;

  template <class I>
  friend typename I::result_type inspect(I& f, weights_published& x) {
    return f(x.v, x.manifest, x.at, x.exact_manifest);
  }
};

/// weight receiver → publisher: may I read this version's buffers? Answered with lease_reply.
struct lease_request {
  std::string receiver;
  version v;

  template <class I>
  friend typename I::result_type inspect(I& f, lease_request& x) {
    return f(x.receiver, x.v);
  }
};

/// publisher → weight receiver.
struct lease_reply {
  std::uint64_t lease = 0; ///< 0: refused, a newer version is current
  version current;

  template <class I>
  friend typename I::result_type inspect(I& f, lease_reply& x) {
    return f(x.lease, x.current);
  }
};

/// weight receiver → publisher: still reading (`done` false), or done with it.
struct lease_update {
  std::uint64_t lease = 0;
  bool done = false;

  template <class I>
  friend typename I::result_type inspect(I& f, lease_update& x) {
    return f(x.lease, x.done);
  }
};

/// weight receiver → generator, urgent: the staging buffers hold `v`, every checksum proven.
struct weights_ready {
  version v;
  double noticed_at = 0; ///< seconds on this node's clock, when the notice came
  double pull_s = 0;
  double verify_s = 0;
  std::int64_t bytes = 0;
  double load_s = 0;
  double quantise_s = 0;

  template <class I>
  friend typename I::result_type inspect(I& f, weights_ready& x) {
    return f(x.v, x.noticed_at, x.pull_s, x.verify_s, x.bytes, x.load_s, x.quantise_s);
  }
};

/// What one training step did. training worker → trainer → recorder. `values` are keyed by metric.
struct step_report {
  version trained_from;
  version published;
  std::map<std::string, double> values;
  std::vector<std::int64_t> staleness; ///< trained tokens by staleness 0, 1, …

  template <class I>
  friend typename I::result_type inspect(I& f, step_report& x) {
    return f(x.trained_from, x.published, x.values, x.staleness);
  }
};

/// training worker → trainer: the step is done and its version can be pulled.
struct train_result {
  step_report report;
  std::string manifest;
  std::string exact_manifest; ///< as of weights_published

  template <class I>
  friend typename I::result_type inspect(I& f, train_result& x) {
    return f(x.report, x.manifest, x.exact_manifest);
  }
};

/// generator → recorder, a few times a second and after each swap.
struct generator_report {
  std::string generator;
  version v;
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  std::int64_t generated_tokens = 0;    ///< since it started
  std::int64_t reprefilled_tokens = 0;  ///< since it started
  std::int64_t discarded_tokens = 0;    ///< of rollouts that were cancelled, since it started
  double busy_s = 0;                    ///< decoding, since it started
  double idle_s = 0;                    ///< with nothing to decode, since it started
  double paused_s = 0;                  ///< in weight swaps, since it started
  std::vector<swap_report> swaps;       ///< since the last report

  template <class I>
  friend typename I::result_type inspect(I& f, generator_report& x) {
    return f(x.generator, x.v, x.running, x.waiting, x.generated_tokens, x.reprefilled_tokens,
             x.discarded_tokens, x.busy_s, x.idle_s, x.paused_s, x.swaps);
  }
};

} // namespace millrace
