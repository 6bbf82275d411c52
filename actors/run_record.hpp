#pragma once

#include "actors/console.hpp"
#include "actors/evaluation.hpp"
#include "runtime/config/settings.hpp"
#include "runtime/messages.hpp"
#include "runtime/run_directory.hpp"
#include "runtime/tensorboard.hpp"

#include <nlohmann/json.hpp>

#include <map>
#include <optional>
#include <string>

namespace millrace {

/// What a run leaves for people: a line per step on the screen and in metrics.jsonl, and the sums
/// that the summary needs. No actor: the recorder's shell and the main thread call it in turn.
class run_record {
public:
  /// `now` in seconds on the stream's clock, here and below: the process's start.
  run_record(const settings& s, run_directory& directory, console& screen, double now);

  /// The stream is up.
  void begin(double now);
  void generator(const generator_report& report);
  void step(const step_report& report, double now);
  void evaluated(const evaluation_report& report, std::string_view when);
  void warmed_up(std::int64_t step, const std::map<std::string, double>& values);

  /// Goes on where an earlier process stopped: sums and evaluations from its metrics that were kept,
  /// time and memory from those that were dropped and from its summary.json (or {}) too.
  void resume(const run_directory::rewound_metrics& lines, const nlohmann::json& summary);

  /// All of summary.json but what only the caller knows (ledger, memory of a cluster's nodes). All
  /// figures are of the whole run since its last start from the beginning, whatever number of
  /// processes it took:
  /// - accuracy_before, accuracy_after: of the first and the last evaluation; accuracy_after_step: the
  ///   training steps before the last. A run that was interrupted isn't evaluated at its end.
  /// - generated_tokens, trained_tokens: of the steps that led to the present weights. What a killed
  ///   process did after its last checkpoint was done again, and counts once.
  /// - wall_s: seconds that its processes ran, from their starts, such lost work included.
  /// - peak_rss_bytes: the most memory that one of them had (in a cluster: on the trainer's node).
  [[nodiscard]] nlohmann::ordered_json summary(double now) const;
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  /// The figures of the last step and evaluation, by their names in metrics.jsonl.
  [[nodiscard]] const std::map<std::string, double>& latest() const { return latest_; }
  [[nodiscard]] bool evaluated_before() const { return first_evaluation_.has_value(); }

private:
  struct generator_sums {
    std::int64_t tokens = 0;
    double busy_s = 0, idle_s = 0, paused_s = 0;
    std::int64_t reprefilled = 0, discarded = 0;
  };
  struct evaluated_accuracy {
    double accuracy = 0;
    std::int64_t step = 0;
  };
  void count(const step_report& report);
  void note(evaluated_accuracy e);
  /// What an earlier process had used by then: of a line of its metrics, or its summary.
  void used_before(const nlohmann::json& told);
  [[nodiscard]] double wall_s(double now) const { return wall_before_ + now - process_began_; }
  /// Into metrics.jsonl, and TensorBoard under `group`.
  void write(const nlohmann::ordered_json& line, std::string_view group);
  [[nodiscard]] generator_sums sums() const;
  [[nodiscard]] nlohmann::ordered_json sync_figures() const;
  [[nodiscard]] std::string line_of(const nlohmann::ordered_json& line,
                                    const generator_sums& sums, double now) const;

  settings settings_;
  run_directory& directory_;
  console& screen_;
  std::map<std::string, generator_report> generators_; ///< latest of each
  generator_sums retired_; ///< of generators that were replaced
  generator_sums last_;    ///< at the last step
  struct {
    double at = 0;
    generator_sums generators;
    double trained = 0, waited_s = 0; ///< since then
  } shown_; ///< at the last line on the screen
  double process_began_ = 0, wall_before_ = 0;
  double began_ = 0, last_step_at_ = 0, time_before_ = 0;
  std::vector<swap_report> swaps_; ///< since the last step, that interrupted something
  std::map<std::string, double> latest_;
  std::optional<tensorboard_writer> tensorboard_;
  int steps_here_ = 0; ///< in this process
  double first_step_at_ = 0; ///< in this process: what came before it tells nothing of the others
  std::int64_t steps_ = 0, generated_tokens_ = 0, trained_tokens_ = 0;
  std::int64_t generated_before_ = 0; ///< by earlier processes of a resumed run
  std::int64_t steps_before_ = 0;     ///< likewise
  std::int64_t peak_before_ = 0;      ///< likewise
  std::vector<std::int64_t> staleness_;
  std::optional<evaluated_accuracy> first_evaluation_, last_evaluation_;
};

} // namespace millrace
