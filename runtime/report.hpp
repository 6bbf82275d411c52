#pragma once

// report.html: one self-contained page about a run, without anything from outside. It reads
// metrics.jsonl, whose lines are of three kinds, told apart by "kind"; keys that are missing or
// null are left out of the curves.
//
//   "step"    step, time_s (of training, so far), and what is known of it by the catalogue's keys:
//             reward_mean, reward_std, accuracy, staleness_mean, staleness_max,
//             generated_tokens_per_s, trained_tokens_per_s, generator_idle, trainer_idle, bubble,
//             kl_infer_train, kl_reference, entropy, grad_norm, clip_fraction_positive,
//             clip_fraction_negative, mask_fraction, ess, loss, learning_rate, length_mean,
//             truncated;
//             staleness: [trained tokens of staleness 0, 1, …]; pause_s: mean pause of weight swaps
//   "eval"    step, eval_accuracy; the first is before training, the last after
//   "warmup"  step, loss, token_accuracy
//
// and summary.json: accuracy_before, accuracy_after (of the last evaluation, at accuracy_after_step),
// generated_tokens, trained_tokens, peak_rss_bytes, ended ("done", "interrupted", …), rollouts
// {admitted, trained, dropped, filtered, failed, in_flight}, reasons {state: {reason: rollouts}}. All
// of these may be missing.

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace millrace {

class run_directory;

struct report_input {
  std::string title; ///< usually the run directory's name
  nlohmann::json config = nlohmann::json::object();  ///< resolved
  std::vector<nlohmann::json> lines;                 ///< of metrics.jsonl
  nlohmann::json summary = nlohmann::json::object();
  std::string config_text; ///< shown as it is
};

/// The whole page.
[[nodiscard]] std::string make_report(const report_input& input);

/// Reads what the run directory holds so far, and writes its report.html. \throws user_error
void write_report(const run_directory& run);

} // namespace millrace
