#include "runtime/metrics/process.hpp"

#include "runtime/metrics/catalogue.hpp"
#include "runtime/metrics/lookup.hpp"

#include <filesystem>
#include <fstream>
#include <string>
#include <sys/resource.h>

namespace millrace {

process_usage read_process_usage() {
  process_usage out;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    const auto number = [&](std::size_t from) { return std::stoll(line.substr(from)); };
    if (line.starts_with("VmRSS:"))
      out.resident_bytes = number(6) * 1024; // the file is in kB
    else if (line.starts_with("VmHWM:"))
      out.peak_resident_bytes = number(6) * 1024;
    else if (line.starts_with("Threads:"))
      out.threads = number(8);
  }
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) * 1e-6; };
  out.cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  std::error_code failed;
  for (auto at = std::filesystem::directory_iterator("/proc/self/fd", failed);
       !failed && at != std::filesystem::directory_iterator(); at.increment(failed))
    ++out.open_files;
  return out;
}

void update_process_metrics(metric_set& values, double up_s, double idle_s) {
  const auto usage = read_process_usage();
  values.set(metrics::resident_memory, double(usage.resident_bytes));
  values.set(metrics::peak_memory, double(usage.peak_resident_bytes));
  values.set_total(metrics::cpu_time, usage.cpu_s);
  values.set(metrics::threads, double(usage.threads));
  values.set(metrics::open_files, double(usage.open_files));
  values.set(metrics::uptime, up_s);
  values.set(metrics::seconds_since_progress, idle_s);
}

process_presence::process_presence(snapshot_board& board, double now)
  : vitals_(board.add("process", "process", now)), began_(now), progress_at_(now) {
}

void process_presence::refresh(std::span<const actor_snapshot> local, double now) {
  const auto progress = first_of(local, "trainer") != nullptr
                          ? total(local, metrics::steps_trained)
                          : total(local, metrics::tokens_generated)
                              + total(local, metrics::answers_scored);
  std::lock_guard lock(mutex_);
  if (progress != progress_)
    progress_at_ = now;
  progress_ = progress;
  update_process_metrics(vitals_->metrics, now - began_, now - progress_at_);
  vitals_->beat(0, now);
}

} // namespace millrace
