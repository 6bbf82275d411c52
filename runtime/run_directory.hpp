#pragma once

// What a run leaves on disk:
//   config.json      every option as the run uses it
//   metrics.jsonl    one JSON object per training step or evaluation
//   summary.json     the outcome, written at the end
//   report.html      curves
//   log.txt
//   checkpoints/  (trainer/checkpoint.hpp)

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace millrace {

/// Where a run goes whose configuration names no folder: runs/NAME-20240131-235959, NAME being the
/// configuration file's, with -2, -3, … appended where that is taken.
/// \param wall seconds since 1970
[[nodiscard]] std::filesystem::path fresh_run_path(const std::filesystem::path& config_file,
                                                   double wall);

/// The folder of one run. One process at a time holds it; the lock ends with the process.
class run_directory {
public:
  enum class mode : std::uint8_t {
    fresh, ///< the folder is new or empty; another run is never overwritten
    resume ///< the folder holds a run, which goes on
  };

  /// \throws user_error when it can't be made, holds something else, or another process has it
  run_directory(std::filesystem::path path, mode how);
  /// A folder that this made, and that never got its configuration, is removed: nothing ran in it.
  ~run_directory();
  run_directory(const run_directory&) = delete;
  run_directory& operator=(const run_directory&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path config_file() const { return path_ / "config.json"; }
  [[nodiscard]] std::filesystem::path metrics_file() const { return path_ / "metrics.jsonl"; }
  [[nodiscard]] std::filesystem::path summary_file() const { return path_ / "summary.json"; }
  [[nodiscard]] std::filesystem::path report_file() const { return path_ / "report.html"; }
  [[nodiscard]] std::filesystem::path log_file() const { return path_ / "log.txt"; }

  void write_config(std::string_view resolved);
  void write_summary(const nlohmann::ordered_json& summary);

  /// Appends one line, in one write: a reader sees whole lines only. Not thread-safe.
  void append_metrics(const nlohmann::ordered_json& line);
  struct rewound_metrics {
    std::vector<nlohmann::json> kept, dropped;
  };
  /// For a resume: drops the lines whose "step" lies after `step`, since training goes on from there,
  /// and what is no whole line. Returns all that could be read.
  rewound_metrics rewind_metrics(std::int64_t step);

private:
  /// A file descriptor that is closed with its owner.
  struct descriptor {
    int value = -1;
    ~descriptor();
    void reset();
  };
  void lock();

  std::filesystem::path path_;
  bool made_ = false; ///< by this
  descriptor lock_;
  descriptor metrics_;
};

/// The lines of a metrics file. A torn last one is left out, as it is while one is being written; so is
/// any other that is no JSON object, with a warning. \throws user_error when it can't be read
[[nodiscard]] std::vector<nlohmann::json> read_metrics(const std::filesystem::path& file);

} // namespace millrace
