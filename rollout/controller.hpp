#pragma once

#include "rollout/admission.hpp"
#include "rollout/ledger.hpp"
#include "rollout/router.hpp"
#include "runtime/messages.hpp"

#include <nlohmann/json_fwd.hpp>

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace millrace {

/// Where prompts come from, already tokenized. The cursor is what a resumed run goes on from.
struct fed_prompt {
  prompt question;
  std::vector<std::int32_t> tokens;
};

class prompt_feed {
public:
  virtual ~prompt_feed() = default;
  virtual fed_prompt next() = 0;
  [[nodiscard]] virtual nlohmann::json cursor() const = 0;
  virtual void seek(const nlohmann::json& cursor) = 0;
};

/// The seed of a group's random streams: a prompt met again in a later epoch gets other answers.
std::uint64_t group_seed(std::uint64_t seed, std::int64_t group);

/// A rollout of which nothing is sampled yet.
rollout blank_rollout(rollout_id id, const fed_prompt& p);

struct controller_options {
  admission_limits limits;
  std::int32_t group_size = 1;       ///< n: rollouts per prompt
  std::int32_t max_attempts = 3;     ///< to generate, and again to score, one rollout
  double rollout_timeout_s = 600;    ///< without a sign of progress; then it is handed out again
  bool filter_zero_variance = false; ///< groups whose rewards are all equal never reach the buffer
  std::int64_t prefix_slack_tokens = 1024; ///< how uneven the load may get to keep a group together
  sampling_params sampling;          ///< `seed` is the run's; each group gets one of its own
};

/// What the controller wants sent. The shell turns each into a message.
struct controller_actions {
  struct assignment {
    std::size_t generator;
    generation_task task;
  };
  struct cancellation {
    std::size_t generator;
    rollout_id id;
  };
  std::vector<assignment> assign;
  std::vector<cancellation> cancel;
  std::vector<score_request> score;
  std::vector<scored_group> deliver; ///< to the replay buffer

  [[nodiscard]] bool empty() const {
    return assign.empty() && cancel.empty() && score.empty() && deliver.empty();
  }
};

/// The rollout controller's decisions, free of I/O, threads, clocks and actors: events in, actions
/// out. It is the one authority on every rollout, and keeps each until it is trained, so that any
/// other actor may die and lose nothing.
///
/// The stream and its back-pressure (→ data, ⇢ what holds it back):
///
///     prompt feed ─▶ admit ─▶ assign ─▶ generator ─▶ finished ─▶ score ─▶ join ─▶ deliver ─▶ replay
///                      ⇡                    ⇡                                               │
///                      │                    └⇠ capacity; version acknowledged ≥ oldest_start│
///                      └⇠ (η+1)·B − outstanding ⇠──── published(v+1) ◀── trainer ◀── claim ─┘
///
/// Nothing waits in a queue that this budget does not bound: running + scoring + scored + buffered
/// + in training ≤ (η+1)·B.
///
/// Every event may come twice or late (a link was cut, an answer was lost): the second is ignored.
class rollout_controller {
public:
  rollout_controller(controller_options options, prompt_feed& feed);

  // -- generators ---------------------------------------------------------------------------------
  /// Registers a generator (again, after a restart) and returns its index.
  std::size_t generator_up(const std::string& name, std::int64_t capacity);
  /// Its rollouts go to others, with the tokens that were last reported.
  void generator_down(std::size_t generator);
  /// It stops of its own will, having handed its partial rollouts back: they go on elsewhere, and
  /// this counts against nobody.
  void generator_left(std::string_view name);
  /// It samples with `v` from now on: routable for it.
  void generator_acknowledged(std::size_t generator, version v);

  // -- the stream ---------------------------------------------------------------------------------
  void progress(const rollout& partial);
  void finished(rollout done);
  /// The generator could not do it, or the task never arrived: handed out again, or failed.
  void generation_failed(rollout_id id, std::int32_t attempt, const std::string& reason);
  void scored(const score& s);
  void scoring_failed(rollout_id id, const std::string& reason);
  /// A group that was to be delivered is not to be trained on after all.
  void filter(std::int64_t group, const std::string& reason);
  /// The replay buffer came up empty: it gets again all that it should hold.
  void replay_up();

  /// The replay buffer wants to hand out these groups for the step from version `v`, and has
  /// dropped those. Returns all groups granted for `v` so far: this, not the buffer, makes training
  /// exactly-once.
  claim_reply claim(const claim_request& request);
  /// The trainer published `v`: the batch that made it is trained.
  void published(version v);

  /// Whether this attempt is still that generator's to do: a hand-out is repeated only then.
  [[nodiscard]] bool handed_to(std::size_t generator, rollout_id id, std::int32_t attempt);
  /// Rollouts that a generator or a reward worker has, with the versions they may hold.
  [[nodiscard]] std::vector<in_flight_rollout> in_flight() const;

  /// Every rollout in flight but not in training that is known to hold a token of `since` or a younger
  /// version, and the oldest version that a generator may still sample with, as far as is known.
  [[nodiscard]] old_logit_supply sampled_since(version since) const;

  /// Hands out again what is overdue. `now` in seconds, monotonic.
  void tick(double now);
  /// No more admissions; what runs may finish.
  void stop_admitting() { admitting_ = false; }

  /// Admits what the budget allows and returns everything to be sent since the last call.
  controller_actions take_actions();

  // -- looking in ---------------------------------------------------------------------------------
  [[nodiscard]] const ledger_totals& totals() const { return ledger_.totals(); }
  [[nodiscard]] version published_version() const { return published_; }
  [[nodiscard]] stream_load load() const;
  [[nodiscard]] std::span<const generator_load> generators() const { return loads_; }
  [[nodiscard]] const std::string& generator_name(std::size_t i) const { return names_[i]; }
  /// Why nothing is being admitted, or empty.
  [[nodiscard]] std::string waits_for() const;

  /// All that a resumed run needs. What is in flight is started again from its prompts.
  [[nodiscard]] nlohmann::json save() const;
  void load(const nlohmann::json& saved);

private:
  struct sample_record {
    rollout data; ///< the prompt and what is known to have been sampled
    std::optional<std::size_t> generator;
    std::int32_t attempts = 0; ///< hand-outs: tells late answers from those waited for
    std::int32_t failures = 0; ///< of these, the ones that count against max_attempts
    std::int32_t score_attempts = 0;
    double deadline = 0;
    version started = no_version; ///< the oldest version that a token of it may have
    std::int64_t cost = 0; ///< tokens charged to the generator
  };
  struct group_record {
    fed_prompt question;
    std::vector<sample_record> samples; ///< those admitted so far
    std::int32_t scored = 0;
  };

  sample_record* find(rollout_id id);
  void admit_next();
  bool assign(rollout_id id, version at_least);
  void unassign(sample_record& s);
  [[nodiscard]] std::vector<rollout_id> running_on(std::size_t generator) const;
  void queue_again(rollout_id id, const std::string& reason);
  void give_up(rollout_id id, const std::string& reason);
  void end_group(std::int64_t group, rollout_state how, const std::string& reason);
  void join(std::int64_t group);
  [[nodiscard]] scored_group payload(const group_record& g, std::int64_t group) const;

  controller_options options_;
  prompt_feed& feed_;
  ledger ledger_;
  std::unordered_map<std::int64_t, group_record> groups_;
  std::vector<generator_load> loads_;
  std::vector<std::string> names_;
  std::deque<rollout_id> pending_; ///< admitted, waiting for a generator (again)
  std::vector<std::int64_t> claimed_; ///< groups of the batch being trained from published_
  controller_actions out_;
  version published_{0};
  std::int64_t next_group_ = 0;
  std::optional<std::int64_t> open_; ///< the group whose samples are not all admitted
  double now_ = 0;
  bool admitting_ = true;
};

} // namespace millrace
