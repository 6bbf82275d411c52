#pragma once

#include "runtime/metrics/board.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>

namespace millrace {

/// What the system says of this process.
struct process_usage {
  std::int64_t resident_bytes = 0;
  std::int64_t peak_resident_bytes = 0;
  double cpu_s = 0; ///< user and system, of all threads
  std::int64_t threads = 0;
  std::int64_t open_files = 0;
};

[[nodiscard]] process_usage read_process_usage();

/// Brings a metric_set of the owner "process" up to date.
/// \param up_s seconds since the process started
/// \param idle_s seconds since it last made progress
void update_process_metrics(metric_set& values, double up_s, double idle_s);

/// The process among its actors: one entry on their board. Its state is the stage that the program
/// is at. Thread-safe.
class process_presence {
public:
  process_presence(snapshot_board& board, double now);

  /// "warm-up 40%", "training", …
  void stage(std::string_view what, double now) { vitals_->working(what, now); }
  /// To be called about once a second. Progress is a training step; where no trainer is among these
  /// actors, a token sampled or an answer judged.
  void refresh(std::span<const actor_snapshot> local, double now);
  [[nodiscard]] metric_set& metrics() { return vitals_->metrics; }

private:
  std::shared_ptr<vitals> vitals_;
  std::mutex mutex_; ///< guards the rest
  double began_;
  double progress_at_;
  double progress_ = 0;
};

} // namespace millrace
