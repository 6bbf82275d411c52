#pragma once

#include "runtime/introspection.hpp"
#include "runtime/metrics/run_series.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// What /introspect says at one moment.
struct top_frame {
  std::string directory;
  std::int64_t step = 0;  ///< reached so far
  std::int64_t steps = 0; ///< of the whole run
  std::int32_t eta = 0;
  double up_s = 0;
  stream_rates rates;
  std::string stall; ///< the report, or empty
  std::vector<actor_snapshot> actors; ///< as the stream goes
};

/// \throws user_error when it is no such answer
[[nodiscard]] top_frame read_top_frame(const nlohmann::json& introspect);

struct top_look {
  int width = 80;      ///< columns; longer lines are cut
  bool colour = false; ///< terminal colours
};

/// The screen of `millrace top`, line by line.
[[nodiscard]] std::vector<std::string> top_screen(const top_frame& frame, const top_look& look);
/// The same in one line, for logs.
[[nodiscard]] std::string top_line(const top_frame& frame);

/// "node/name" of an actor of a cluster, else its name: what `millrace inspect` finds it by.
[[nodiscard]] std::string full_name(const actor_snapshot& a);

/// Cut to so many columns, "…" at the end; colours take none.
[[nodiscard]] std::string cut(std::string_view line, int width);

} // namespace millrace
