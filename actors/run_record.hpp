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
  run_record(const settings& s, run_directory& directory, console& screen);

  /// `now` in seconds on the stream's clock.
  void begin(double now);
  void generator(const generator_report& report);
  void step(const step_report& report, double now);
  void evaluated(const evaluation_report& report, std::string_view when);
  void warmed_up(std::int64_t step, const std::map<std::string, double>& values);

  /// Goes on where an earlier process stopped: sums and first evaluation from its metrics.
  void resume(const std::vector<nlohmann::json>& lines);

  /// All of summary.json but what only the caller knows (ledger, wall time, memory).
  [[nodiscard]] nlohmann::ordered_json summary() const;
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  /// The figures of the last step and evaluation, by their names in metrics.jsonl.
  [[nodiscard]] const std::map<std::string, double>& latest() const { return latest_; }
  [[nodiscard]] bool evaluated_before() const { return first_accuracy_.has_value(); }

private:
  struct generator_sums {
    std::int64_t tokens = 0;
    double busy_s = 0, idle_s = 0, paused_s = 0;
    std::int64_t reprefilled = 0, discarded = 0;
  };
  void count(const step_report& report);
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
  double began_ = 0, last_step_at_ = 0, time_before_ = 0;
  std::vector<swap_report> swaps_; ///< since the last step, that interrupted something
  std::map<std::string, double> latest_;
  std::optional<tensorboard_writer> tensorboard_;
  int steps_here_ = 0; ///< in this process
  double first_step_at_ = 0; ///< in this process: what came before it tells nothing of the others
  std::int64_t steps_ = 0, generated_tokens_ = 0, trained_tokens_ = 0;
  std::int64_t generated_before_ = 0; ///< by earlier processes of a resumed run
  std::int64_t steps_before_ = 0;     ///< likewise
  std::vector<std::int64_t> staleness_;
  std::optional<double> first_accuracy_, last_accuracy_;
};

} // namespace millrace
