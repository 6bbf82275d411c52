#pragma once

// Every metric of the runtime, declared once. The owner is the kind of actor that keeps it. Gauges
// with a key have that name in each step's line of metrics.jsonl.

#include "runtime/metrics/metric.hpp"

namespace millrace::metrics {

/// Staleness as a label: how many of something are 0, 1, … versions old; "over" beyond that.
inline metric_label by_staleness() {
  return {"staleness", {"0", "1", "2", "3", "4", "5", "6", "7", "8", "over"}};
}
/// The label's value for a staleness.
inline std::string staleness_label(std::int64_t versions) {
  return versions > 8 ? "over" : std::to_string(versions < 0 ? 0 : versions);
}

/// Seconds, 0.1 ms to 400 s.
inline std::vector<double> duration_bounds() { return exponential_bounds(1e-4, 2, 23); }

// -- rollout controller ----------------------------------------------------------------------------

inline const counter rollouts_admitted{
  "controller", "millrace_rollouts_admitted_total", "rollouts", "Rollouts that were started"};
inline const counter rollouts_ended{
  "controller", "millrace_rollouts_ended_total", "rollouts",
  "Rollouts by how they ended; with those in flight they add up to those admitted",
  {"how", {"trained", "dropped", "filtered", "failed"}}};
inline const counter rollouts_dropped{
  "controller", "millrace_rollouts_dropped_total", "rollouts", "Rollouts that were dropped",
  {"reason", {"stale", "sibling failed", "cancelled", "other"}}};
inline const counter rollouts_retried{
  "controller", "millrace_rollouts_retried_total", "rollouts",
  "Rollouts handed out again after their generator died, stalled or returned them"};
inline const counter scores_late{
  "controller", "millrace_scores_late_total", "rollouts",
  "Answers whose reward did not come in time; they are judged again, or fail"};
inline const counter filters_late{
  "controller", "millrace_filters_late_total", "groups",
  "Groups that a plugin's filter gave no verdict on in time; they are trained on"};
inline const gauge rollouts_in_state{
  "controller", "millrace_rollouts_in_state", "rollouts", "Rollouts in flight, by where they are", {},
  {"state", {"running", "scoring", "scored", "buffered", "training"}}};
inline const gauge admission_outstanding{
  "controller", "millrace_admission_outstanding_rollouts", "rollouts",
  "Rollouts that count against the budget (eta + 1)·B", "outstanding"};
inline const gauge admission_budget{
  "controller", "millrace_admission_budget_rollouts", "rollouts",
  "The budget (eta + 1)·B"};
inline const gauge generators_up{
  "controller", "millrace_generators_up", "generators", "Generators that take rollouts"};
inline const gauge in_flight_by_staleness{
  "controller", "millrace_in_flight_rollouts_by_staleness", "rollouts",
  "Running rollouts by the staleness of their oldest token", {}, by_staleness()};
inline const gauge in_flight_staleness{
  "controller", "millrace_in_flight_staleness_versions", "versions",
  "Staleness of running rollouts: the oldest token of all (head), the youngest (tail), and the "
  "largest span within one rollout", {}, {"position", {"head", "tail", "span"}}};
inline const gauge stream_version{
  "controller", "millrace_version", "versions", "The newest version that was published", "version"};
inline const counter zero_variance_groups{
  "controller", "millrace_zero_variance_groups_total", "groups",
  "Groups whose rewards were all equal"};
inline const gauge group_reward{
  "controller", "millrace_reward", "reward",
  "Reward of the groups that were joined last, mean and standard deviation", {},
  {"statistic", {"mean", "std"}}};

// -- generators ------------------------------------------------------------------------------------

inline const counter tokens_generated{
  "generator", "millrace_tokens_generated_total", "tokens", "Tokens that were sampled"};
inline const counter tokens_reprefilled{
  "generator", "millrace_tokens_reprefilled_total", "tokens",
  "Tokens whose cache was computed again after a weight swap or a move"};
inline const counter tokens_discarded{
  "generator", "millrace_tokens_discarded_total", "tokens",
  "Sampled tokens of rollouts that were cancelled or given up"};
inline const counter generator_busy{
  "generator", "millrace_generator_busy_seconds_total", "seconds", "Time spent decoding"};
inline const counter generator_idle{
  "generator", "millrace_generator_idle_seconds_total", "seconds",
  "Time with nothing to decode"};
inline const counter generator_paused{
  "generator", "millrace_generator_paused_seconds_total", "seconds",
  "Time spent in weight swaps"};
inline const gauge generator_idle_ratio{
  "generator", "millrace_generator_idle_ratio", "ratio",
  "Share of the last five seconds with nothing to decode", "generator_idle"};
inline const gauge generator_running{
  "generator", "millrace_generator_running_sequences", "sequences",
  "Sequences that are decoded together"};
inline const gauge generator_waiting{
  "generator", "millrace_generator_waiting_sequences", "sequences",
  "Sequences that wait for a place in the batch"};
inline const gauge generator_version{
  "generator", "millrace_generator_version", "versions", "The version that it samples with"};
inline const gauge kv_cache_used{
  "generator", "millrace_kv_cache_used_blocks", "blocks", "Blocks of the cache that hold keys and values"};
inline const gauge kv_cache_capacity{
  "generator", "millrace_kv_cache_capacity_blocks", "blocks", "Blocks that the cache has"};
inline const histogram answer_length{
  "generator", "millrace_answer_length_tokens", "tokens", "Generated tokens of finished rollouts",
  exponential_bounds(1, 2, 18)};
inline const counter answers{
  "generator", "millrace_answers_total", "rollouts",
  "Finished rollouts, by what ended them; length means truncated",
  {"finish", {"stop", "length", "cancelled", "other"}}};
inline const histogram swap_pause{
  "generator", "millrace_weight_swap_pause_seconds", "seconds",
  "Time of a weight swap in which nothing was decoded: swap and re-prefill", duration_bounds()};
inline const histogram swap_total{
  "generator", "millrace_weight_swap_total_seconds", "seconds",
  "From the notice of a version to its first token", duration_bounds()};
inline const histogram swap_stage{
  "generator", "millrace_weight_swap_stage_seconds", "seconds", "Stages of a weight swap",
  duration_bounds(), {"stage", {"pull", "verify", "load", "quantise", "prefill"}}};
inline const counter swap_bytes{
  "generator", "millrace_weight_swap_bytes_total", "bytes", "Weights that were received"};

// -- reward ----------------------------------------------------------------------------------------

inline const counter answers_scored{
  "reward", "millrace_answers_scored_total", "rollouts", "Answers that were judged",
  {"verdict", {"correct", "wrong", "not judged", "error"}}};
inline const counter reward_busy{
  "reward", "millrace_reward_busy_seconds_total", "seconds", "Time spent judging"};
inline const histogram score_latency{
  "reward", "millrace_score_latency_seconds", "seconds", "Time to judge one answer",
  duration_bounds()};

// -- replay buffer ---------------------------------------------------------------------------------

inline const gauge replay_depth{
  "replay", "millrace_replay_rollouts", "rollouts", "Rollouts that wait for training", "replay_depth"};
inline const gauge replay_capacity{
  "replay", "millrace_replay_capacity_rollouts", "rollouts", "Rollouts that it can hold"};
inline const counter replay_inserted{
  "replay", "millrace_replay_inserted_total", "rollouts", "Rollouts that were put in"};
inline const counter replay_handed_out{
  "replay", "millrace_replay_handed_out_total", "rollouts", "Rollouts given to the trainer"};
inline const counter replay_over_bound{
  "replay", "millrace_replay_over_bound_total", "rollouts",
  "Rollouts with tokens beyond eta, by what was done: old tokens masked, rollout dropped, or "
  "waited for", {"action", {"mask", "drop", "wait"}}};
inline const counter tokens_masked{
  "replay", "millrace_tokens_masked_total", "tokens",
  "Sampled tokens kept out of the loss for being beyond eta"};
inline const gauge queue_by_staleness{
  "replay", "millrace_queue_rollouts_by_staleness", "rollouts",
  "Waiting rollouts by the staleness of their oldest token", {}, by_staleness()};
inline const gauge queue_staleness{
  "replay", "millrace_queue_staleness_versions", "versions",
  "Staleness of waiting rollouts: the oldest token of all (head), the youngest (tail), and the "
  "largest span within one rollout", {}, {"position", {"head", "tail", "span"}}};

// -- trainer ---------------------------------------------------------------------------------------

inline const counter steps_trained{
  "trainer", "millrace_steps_total", "steps", "Training steps"};
inline const counter steps_skipped{
  "trainer", "millrace_updates_skipped_total", "updates",
  "Optimiser steps skipped for a loss or gradient that was not finite"};
inline const counter rollouts_trained{
  "trainer", "millrace_rollouts_trained_total", "rollouts", "Rollouts that were trained on"};
inline const counter tokens_trained{
  "trainer", "millrace_tokens_trained_total", "tokens", "Sampled tokens that were trained on, once each"};
inline const counter tokens_useful{
  "trainer", "millrace_tokens_useful_total", "tokens",
  "Of these, tokens of groups whose rewards differed, less the share that the loss's masks took out"};
inline const histogram trained_staleness{
  "trainer", "millrace_trained_token_staleness_versions", "versions",
  "Staleness of trained tokens", whole_bounds(16)};
inline const histogram rollout_staleness{
  "trainer", "millrace_trained_rollout_staleness_versions", "versions",
  "Staleness of trained rollouts: of their oldest token (head), their youngest (tail), and the "
  "difference (span)", whole_bounds(16), {"position", {"head", "tail", "span"}}};
inline const counter trainer_busy{
  "trainer", "millrace_trainer_busy_seconds_total", "seconds", "Time spent in training steps"};
inline const counter trainer_waited{
  "trainer", "millrace_trainer_wait_seconds_total", "seconds", "Time spent waiting for a batch"};
inline const gauge trainer_idle_ratio{
  "trainer", "millrace_trainer_idle_ratio", "ratio",
  "Share of the last step's time spent waiting for its batch", "trainer_idle"};
inline const gauge bubble_ratio{
  "recorder", "millrace_bubble_ratio", "ratio",
  "Share of the last step's time in which trainer or generators had nothing to do, averaged over "
  "them", "bubble"};
inline const gauge generated_rate{
  "recorder", "millrace_tokens_generated_per_second", "tokens per second",
  "Tokens sampled per second, over the last step", "generated_tokens_per_s"};
inline const gauge trained_rate{
  "recorder", "millrace_tokens_trained_per_second", "tokens per second",
  "Sampled tokens trained on per second, over the last step", "trained_tokens_per_s"};
inline const histogram step_time{
  "trainer", "millrace_step_stage_seconds", "seconds", "Stages of a training step",
  duration_bounds(),
  {"stage", {"wait", "advantage", "old_logits", "forward_backward", "optimizer", "publish", "total"}}};
inline const gauge loss{"trainer", "millrace_loss", "loss", "Mean loss of the last step", "loss"};
inline const gauge learning_rate{
  "trainer", "millrace_learning_rate", "1", "Learning rate of the last step", "learning_rate"};
inline const gauge batch_reward_mean{
  "trainer", "millrace_batch_reward_mean", "reward", "Mean reward of the last batch", "reward_mean"};
inline const gauge batch_reward_std{
  "trainer", "millrace_batch_reward_std", "reward",
  "Standard deviation of the last batch's rewards", "reward_std"};
inline const gauge batch_accuracy{
  "trainer", "millrace_batch_accuracy_ratio", "ratio", "Share of right answers in the last batch",
  "accuracy"};
inline const gauge held_out_accuracy{
  "recorder", "millrace_eval_accuracy_ratio", "ratio",
  "Share of right answers in the last evaluation on held-out prompts", "eval_accuracy"};
inline const gauge batch_zero_variance{
  "trainer", "millrace_batch_zero_variance_groups", "groups",
  "Groups of the last batch whose rewards were all equal", "zero_variance_groups"};
inline const gauge batch_length{
  "trainer", "millrace_batch_answer_length_tokens", "tokens",
  "Mean generated tokens of the last batch's rollouts", "length_mean"};
inline const gauge batch_truncated{
  "trainer", "millrace_batch_truncated_ratio", "ratio",
  "Share of the last batch's rollouts that ran into the token limit", "truncated"};
inline const gauge grad_norm{
  "trainer", "millrace_grad_norm", "1", "Global norm of the gradient before clipping", "grad_norm"};
inline const gauge entropy{
  "trainer", "millrace_entropy_nats", "nats", "Entropy of the policy at trained tokens", "entropy"};
inline const gauge effective_sample_size{
  "trainer", "millrace_effective_sample_size_ratio", "ratio",
  "(sum w)^2 / (N sum w^2) of the importance weights between trainer and generator", "ess"};
inline const gauge off_policy{
  "trainer", "millrace_off_policy", "boolean",
  "1 while trainer and generators have drifted apart: for several steps in a row the effective sample "
  "size was low, or masks or clips took out most tokens", "off_policy"};
inline const gauge kl_infer_train{
  "trainer", "millrace_kl_infer_train_nats", "nats",
  "KL divergence of the generator's policy from the trainer's, at trained tokens", "kl_infer_train"};
inline const gauge kl_reference{
  "trainer", "millrace_kl_reference_nats", "nats", "KL divergence from the reference policy",
  "kl_reference"};
inline const gauge clip_fraction_positive{
  "trainer", "millrace_clip_fraction_positive_ratio", "ratio",
  "Share of trained tokens of positive advantage that the loss clipped", "clip_fraction_positive"};
inline const gauge clip_fraction_negative{
  "trainer", "millrace_clip_fraction_negative_ratio", "ratio",
  "Share of trained tokens of negative advantage that the loss clipped", "clip_fraction_negative"};
inline const gauge mask_fraction{
  "trainer", "millrace_mask_fraction_ratio", "ratio",
  "Share of tokens that the loss's masks took out", "mask_fraction"};
inline const gauge staleness_mean{
  "trainer", "millrace_batch_staleness_mean_versions", "versions",
  "Mean staleness of the last batch's trained tokens", "staleness_mean"};
inline const gauge staleness_max{
  "trainer", "millrace_batch_staleness_max_versions", "versions",
  "Largest staleness of a token trained on in the last batch", "staleness_max"};
inline const gauge staleness_bound{
  "trainer", "millrace_staleness_bound_versions", "versions", "eta, the bound", "eta"};

inline const gauge old_logits_share_recompute{
  "trainer", "millrace_old_logits_share_recompute_ratio", "ratio",
  "Share of the last step's tokens whose old log-prob came from the current policy",
  "old_logits_share_recompute"};
inline const gauge old_logits_share_snapshot{
  "trainer", "millrace_old_logits_share_snapshot_ratio", "ratio",
  "Share of the last step's tokens whose old log-prob came from kept weights, in the step",
  "old_logits_share_snapshot"};
inline const gauge old_logits_share_dedicated{
  "trainer", "millrace_old_logits_share_dedicated_ratio", "ratio",
  "Share of the last step's tokens whose old log-prob came from the old-logit actor",
  "old_logits_share_dedicated"};
inline const gauge old_logits_share_interrupt{
  "trainer", "millrace_old_logits_share_interrupt_ratio", "ratio",
  "Share of the last step's tokens whose old log-prob came from the version while it was resident",
  "old_logits_share_interrupt"};
inline const gauge old_logits_share_ewma{
  "trainer", "millrace_old_logits_share_ewma_ratio", "ratio",
  "Share of the last step's tokens whose old log-prob came from the average of the parameters",
  "old_logits_share_ewma"};
inline const gauge old_logits_forwards{
  "trainer", "millrace_old_logits_forwards", "passes",
  "Forward passes of the last step for old log-probs, one per version present", "old_logits_forwards"};
inline const gauge old_logits_versions{
  "trainer", "millrace_old_logits_versions", "versions", "Older versions that are kept",
  "old_logits_versions"};
inline const gauge old_logits_device_bytes{
  "trainer", "millrace_old_logits_device_bytes", "bytes",
  "Weights kept for old log-probs on the trainer's device", "old_logits_device_bytes"};
inline const gauge old_logits_memory_bytes{
  "trainer", "millrace_old_logits_memory_bytes", "bytes",
  "Weights and log-probs kept for old log-probs in host memory", "old_logits_memory_bytes"};
inline const gauge old_logits_disk_bytes{
  "trainer", "millrace_old_logits_disk_bytes", "bytes", "The same on disk", "old_logits_disk_bytes"};
inline const gauge old_logits_copying{
  "trainer", "millrace_old_logits_copying_seconds", "seconds",
  "Time of the last step that kept weights took to be copied, written and read",
  "old_logits_copying_s"};
inline const gauge old_logits_hidden{
  "trainer", "millrace_old_logits_hidden_seconds", "seconds",
  "Time since the step before that the old-logit actor computed", "old_logits_hidden_s"};
inline const gauge old_logits_waited{
  "trainer", "millrace_old_logits_waited_seconds", "seconds",
  "Time that the trainer waited for what its old log-probs need, beside the stage old_logits",
  "old_logits_waited_s"};
inline const gauge old_logits_hidden_share{
  "trainer", "millrace_old_logits_hidden_ratio", "ratio",
  "Share of the time for old log-probs that was off the trainer's path", "old_logits_hidden_share"};
inline const gauge old_logits_publish_time{
  "trainer", "millrace_old_logits_publish_seconds", "seconds",
  "Time of the last step that publishing its weights in full precision for an old-logit node took",
  "old_logits_publish_s"};
inline const gauge old_logits_publish_bytes{
  "trainer", "millrace_old_logits_publish_bytes", "bytes",
  "Weights that the last step published in full precision for an old-logit node; 0: none, or the "
  "node still fetched an older version", "old_logits_publish_bytes"};
inline const gauge rank_wait{
  "trainer", "millrace_rank_wait_seconds", "seconds",
  "Time of the last step that the trainer's rank 0 waited for its other ranks", "rank_wait_s"};
inline const gauge trainer_peak_memory{
  "trainer", "millrace_trainer_peak_resident_memory_bytes", "bytes",
  "The most memory that the trainer's process, or that of one of its ranks, has had so far",
  "trainer_peak_rss_bytes"};
inline const gauge batch_rollouts{
  "trainer", "millrace_batch_rollouts", "rollouts", "Rollouts of the last batch", "rollouts"};
inline const gauge batch_groups{
  "trainer", "millrace_batch_groups", "groups", "Groups of the last batch", "groups"};
inline const gauge batch_masked{
  "trainer", "millrace_batch_masked_tokens", "tokens",
  "Tokens of the last batch that were too old to be trained on", "masked_tokens"};
inline const gauge micro_batches{
  "trainer", "millrace_micro_batches", "passes",
  "Forward and backward passes of the last step", "micro_batches"};
inline const gauge updates{
  "trainer", "millrace_updates", "updates", "Optimiser steps of the last training step", "updates"};
inline const gauge clipped_updates{
  "trainer", "millrace_clipped_updates_ratio", "ratio",
  "Share of the last step's updates whose gradient was clipped", "clipped_updates"};
inline const gauge processed_tokens{
  "trainer", "millrace_processed_tokens", "tokens",
  "Tokens that went through the model in the last step, prompts included", "processed_tokens"};
inline const gauge nonfinite_tokens{
  "trainer", "millrace_nonfinite_tokens", "tokens",
  "Tokens of the last step that the loss left out because something was not finite",
  "nonfinite_tokens"};
inline const gauge advantage_size{
  "trainer", "millrace_advantage_abs_mean", "reward", "Mean size of the last step's advantages",
  "advantage_abs_mean"};
inline const gauge kl_loss{
  "trainer", "millrace_kl_loss", "loss", "The KL penalty's part of the last step's loss", "kl_loss"};
inline const gauge kl_infer_train_k3{
  "trainer", "millrace_kl_infer_train_k3_nats", "nats",
  "KL divergence of the generator's policy from the trainer's, by the estimator of low variance",
  "kl_infer_train_k3"};
inline const gauge prob_difference{
  "trainer", "millrace_probability_difference", "1",
  "Largest difference between generator's and trainer's probability of a token in the last step",
  "max_abs_prob_diff"};
inline const gauge top1_fraction{
  "trainer", "millrace_top1_ratio", "ratio",
  "Share of trained tokens that were the likeliest to the policy", "top1_fraction"};
inline const gauge ewma_reset{
  "trainer", "millrace_ewma_reset", "boolean",
  "1 where the average of the parameters began anew after the last step", "ewma_reset"};
inline const gauge old_logits_tokens{
  "trainer", "millrace_old_logits_tokens", "tokens",
  "Tokens that went through the model for old log-probs in the last step", "old_logits_tokens"};
inline const gauge critic_time{
  "trainer", "millrace_critic_seconds", "seconds", "Time of the last step's critic, values and updates",
  "critic_s"};
inline const gauge value_mean{
  "trainer", "millrace_value_mean", "reward", "Mean of the critic's values, before its updates",
  "value_mean"};
inline const gauge critic_grad_norm{
  "trainer", "millrace_critic_grad_norm", "1", "Global norm of the critic's gradient before clipping",
  "critic_grad_norm"};
inline const gauge value_loss{
  "trainer", "millrace_value_loss", "loss", "The critic's mean loss of the last step", "value_loss"};
inline const gauge explained_variance{
  "trainer", "millrace_explained_variance_ratio", "ratio",
  "Share of the returns' variance that the critic's values explain, before its updates",
  "explained_variance"};
inline const gauge value_clip_fraction{
  "trainer", "millrace_value_clip_fraction_ratio", "ratio",
  "Share of tokens whose value had moved too far to gain by it", "value_clip_fraction"};

// -- weight publishing -----------------------------------------------------------------------------

inline const counter versions_published{
  "publisher", "millrace_versions_published_total", "versions", "Versions that were published"};
inline const counter leases_expired{
  "publisher", "millrace_leases_expired_total", "leases",
  "Readers that held a version beyond their lease"};
inline const gauge leases_open{
  "publisher", "millrace_leases_open", "leases", "Readers that hold a version"};
inline const counter publish_bytes{
  "trainer", "millrace_publish_bytes_total", "bytes", "Weights that were put up for reading"};
inline const counter shard_reads_repeated{
  "receiver", "millrace_shard_reads_repeated_total", "shards",
  "Shards that were read again because their checksum was wrong or the read was lost"};
inline const counter pull_bytes{
  "receiver", "millrace_weight_pull_bytes_total", "bytes",
  "Weights that were fetched, repeated reads included"};
inline const counter pull_bytes_saved{
  "receiver", "millrace_weight_pull_saved_bytes_total", "bytes",
  "Weights that were not fetched because they had not changed (weight_sync.delta)"};
inline const counter pulls{
  "receiver", "millrace_weight_pulls_total", "pulls", "Attempts to fetch a version, by outcome",
  {"outcome", {"done", "failed", "superseded"}}};
inline const gauge link_share{
  "receiver", "millrace_weight_pull_link_ratio", "ratio",
  "Share of the link's measured bandwidth that the last pull reached"};

// -- old-logit actor -------------------------------------------------------------------------------

inline const gauge old_logit_groups{
  "old_logits", "millrace_old_logit_groups", "groups",
  "Groups that the old-logit actor has, by whether their old log-probs are all computed", {},
  {"state", {"waiting", "done"}}};
inline const gauge old_logit_versions{
  "old_logits", "millrace_old_logit_versions", "versions", "Versions that it can compute with"};
inline const gauge old_logit_bytes{
  "old_logits", "millrace_old_logit_weight_bytes", "bytes", "Weights that it keeps", {},
  {"place", {"memory", "disk"}}};
inline const counter old_logit_tokens{
  "old_logits", "millrace_old_logit_tokens_total", "tokens",
  "Tokens by whether it knew their old log-prob when they were trained on; too late: they were not "
  "computed yet; no weights: their version had not come here, or is gone",
  {"outcome", {"known", "too late", "no weights"}}};
inline const counter old_logit_forwards{
  "old_logits", "millrace_old_logit_forwards_total", "passes", "Forward passes that it made"};
inline const counter old_logit_busy{
  "old_logits", "millrace_old_logit_busy_seconds_total", "seconds", "Time that it computed"};

// -- supervisor and process ------------------------------------------------------------------------

inline const counter actors_restarted{
  "supervisor", "millrace_actors_restarted_total", "restarts", "Actors that died and were restarted"};
inline const counter stalls{
  "process", "millrace_stalls_total", "stalls",
  "Times that nothing was trained for longer than supervisor.stall_report_s"};
inline const gauge seconds_since_progress{
  "process", "millrace_seconds_since_progress", "seconds",
  "Time since the last training step; in a process without a trainer, since it last sampled a token "
  "or judged an answer"};
inline const gauge resident_memory{
  "process", "millrace_resident_memory_bytes", "bytes", "Memory of the process", "rss_bytes"};
inline const gauge peak_memory{
  "process", "millrace_peak_resident_memory_bytes", "bytes", "Its largest value so far",
  "peak_rss_bytes"};
inline const counter cpu_time{
  "process", "millrace_cpu_seconds_total", "seconds", "Processor time of all threads"};
inline const gauge uptime{"process", "millrace_uptime_seconds", "seconds", "Time since the start"};
inline const gauge threads{"process", "millrace_threads", "threads", "Threads of the process"};
inline const gauge open_files{
  "process", "millrace_open_files", "files", "Open files and sockets"};

inline const counter http_requests{
  "process", "millrace_http_requests_total", "requests", "Requests to the monitor, by answer",
  {"answer", {"served", "unauthorized", "not found"}}};
inline const counter http_dropped{
  "process", "millrace_http_connections_dropped_total", "connections",
  "Connections to the monitor that were closed without an answer",
  {"reason", {"garbage", "too slow", "too many", "gone"}}};
inline const gauge http_open{
  "process", "millrace_http_connections_open", "connections", "Open connections to the monitor"};

// -- evaluator -------------------------------------------------------------------------------------

inline const counter evaluations{
  "evaluator", "millrace_evaluations_total", "evaluations",
  "Evaluations on held-out prompts while training goes on; superseded: a later one was due before "
  "it could begin", {"outcome", {"done", "superseded"}}};
inline const gauge evaluation_progress{
  "evaluator", "millrace_evaluation_progress_ratio", "ratio",
  "Share of the present evaluation's answers that are in"};

// -- every actor: filled from its snapshot ---------------------------------------------------------

inline const gauge mailbox_depth{
  "actor", "millrace_mailbox_messages", "messages", "Messages that wait for the actor"};
inline const gauge state_age{
  "actor", "millrace_state_seconds", "seconds", "Time that the actor has been in its present state"};
inline const gauge silence{
  "actor", "millrace_silent_seconds", "seconds",
  "Time since the actor last took a message; it is asked every second, so more means that it is busy "
  "with one, or stuck"};
inline const gauge waiting{
  "actor", "millrace_waiting", "boolean", "1 while the actor waits for another"};

} // namespace millrace::metrics
