#pragma once

#include "runtime/metrics/metric_set.hpp"

#include <cstdint>

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
/// \param idle_s seconds since the last training step, or since the start
void update_process_metrics(metric_set& values, double up_s, double idle_s);

} // namespace millrace
