#pragma once

#include "actors/http_server.hpp"
#include "actors/stall_watch.hpp"
#include "runtime/config/settings.hpp"
#include "runtime/metrics/node_tree.hpp"
#include "runtime/metrics/process.hpp"
#include "runtime/metrics/run_series.hpp"

#include <nlohmann/json.hpp>

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace millrace {

/// Shows a running process to people and programs:
///
///     /             dashboard, one page
///     /metrics      Prometheus text
///     /introspect   everything as JSON: what `millrace top` and `millrace inspect` read
///     /series       the course of the run, for charts
///     /healthz      200, or 503 with the stall report
///
/// Once a second it asks all actors for a sign of life, and looks for stalls, which go to the log.
/// Lives as long as the run, longer than its actors.
class monitor {
public:
  /// Listens, and writes `directory`/monitor.json with the address (and the token, readable by the
  /// user alone), so that the run can be found. `now` gives seconds on the actors' clock.
  /// An address that can't be had is an error when the user named the port, otherwise a warning.
  /// \throws user_error
  monitor(const settings& s, std::filesystem::path directory, std::function<double()> now,
          std::shared_ptr<snapshot_board> board = snapshot_board::of_process());
  ~monitor();

  [[nodiscard]] const std::shared_ptr<snapshot_board>& board() const { return tree_->local(); }
  /// For the introspector, which adds the other nodes.
  [[nodiscard]] const std::shared_ptr<node_tree>& tree() const { return tree_; }
  /// What the program is at, for those who watch: "warm-up", "training".
  void stage(std::string_view what) { process_.stage(what, now_()); }
  /// The training step that the run is at, as last seen.
  [[nodiscard]] std::int64_t step() const;
  /// "http://127.0.0.1:41234/", or empty when it does not listen.
  [[nodiscard]] std::string url() const;

  http_response answer(const http_request& r);

private:
  void look();
  [[nodiscard]] bool allowed(const http_request& r) const;
  http_response page_for(const http_request& r);
  nlohmann::ordered_json introspect();
  http_response health();
  void announce() const;

  monitor_settings options_;
  nlohmann::ordered_json run_; ///< what /introspect says of the run
  std::filesystem::path directory_;
  std::function<double()> now_;
  double began_;
  std::shared_ptr<node_tree> tree_;
  process_presence process_;
  mutable std::mutex mutex_; ///< guards the next four
  std::int64_t step_ = 0; ///< the last version seen: it stays known when the stream is gone
  run_series series_;
  stall_watch stalls_;
  std::optional<stall_report> stall_;
  std::unique_ptr<http_server> server_;
  std::condition_variable_any wake_;
  std::jthread pulse_; // last: uses all of the above
};

} // namespace millrace
