#pragma once

#include <filesystem>
#include <string>

namespace millrace {

/// Where a running process shows itself.
struct run_address {
  std::string url;   ///< "http://127.0.0.1:41234/"
  std::string token; ///< empty: none is needed
};

/// Finds a run: by its folder (RUNDIR/monitor.json), by its URL, or, when `what` is empty, the newest
/// one under runs/ that is still alive. \throws user_error saying what is there instead
[[nodiscard]] run_address find_run(const std::string& what);

struct http_answer {
  int status = 0;
  std::string body;
};

/// Gets a page of a monitor. \throws user_error when nobody answers within `timeout_s`
[[nodiscard]] http_answer http_get(const run_address& run, const std::string& path,
                                   double timeout_s = 5);

} // namespace millrace
