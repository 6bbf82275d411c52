// Weight sync between processes: bandwidth over shared memory against memcpy, over TCP against
// ucx_perftest with the same settings; and where bench/peers/weightsync.sh started this, the seconds
// against a Gloo broadcast and a reload through safetensors of the same bytes.

#include "bench/benchmarks.hpp"
#include "bench/weightsync_processes.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

namespace millrace::bench {

namespace {

struct setting {
  std::size_t bytes;
  int receivers;
  std::string transports; // as weight_sync.protocols
};

std::string name_of(const setting& s) {
  char size[32];
  std::snprintf(size, sizeof(size), "%.3g GB", static_cast<double>(s.bytes) / 1e9);
  return std::string(s.transports == "tcp" ? "TCP" : "shared memory") + ", " + size + " to "
         + std::to_string(s.receivers);
}

/// What programs can still get: free, or cache that gives way.
double available_bytes() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  double kib = 0;
  while (in >> key >> kib && key != "MemAvailable:")
    in.ignore(64, '\n');
  return kib * 1024;
}

/// The other ways' seconds for the same bytes; empty where there is no peer, or it failed.
nlohmann::json peer_seconds(const setting& s) {
  const char* peer = std::getenv("MILLRACE_WEIGHTSYNC_PEER");
  if (peer == nullptr)
    return {};
  auto command = std::string(peer) + " --bytes " + std::to_string(s.bytes) + " --receivers "
                 + std::to_string(s.receivers);
  std::string said;
  if (auto* out = ::popen(command.c_str(), "r")) {
    char buffer[4096];
    while (auto n = std::fread(buffer, 1, sizeof buffer, out))
      said.append(buffer, n);
    if (::pclose(out) != 0)
      return {{"failed", true}};
  }
  return nlohmann::json::parse(said, nullptr, false);
}

void compare_with_peers(const setting& s, const std::string& name, double seconds,
                        measurements& out) {
  auto peer = peer_seconds(s);
  if (!peer.is_object())
    return;
  if (peer.contains("failed")) {
    out.push_back({.name = name + ": against the peers", .missing = "the peer failed (see above)"});
    return;
  }
  for (const auto& [key, against] : {std::pair{"gloo_s", "torch.distributed Gloo broadcast"},
                                     std::pair{"safetensors_s", "safetensors saved and loaded"}})
    out.push_back({.name = name + ": published and pulled, times faster", .value = seconds,
                   .unit = "s", .against = against, .ratio = peer[key].get<double>() / seconds,
                   .bar = 1});
}

double needed(const sync_setup& s) {
  return 1.05
         * (static_cast<double>(s.parameter_bytes) + 2 * static_cast<double>(s.bytes)
            + s.receivers * static_cast<double>(s.tensor_bytes));
}

/// The parameters, two published versions, and each receiver's tensors; where that doesn't fit,
/// tensors that share memory in turn: first the parameters, then the receivers' too.
std::optional<sync_setup> what_fits(const setting& s) {
  constexpr std::size_t shared = 1'000'000'000;
  for (auto [parameters, tensors] : {std::pair{s.bytes, s.bytes}, std::pair{shared, s.bytes},
                                     std::pair{shared, shared}}) {
    sync_setup how{s.bytes, s.receivers, s.transports, std::min(parameters, s.bytes),
                   std::min(tensors, s.bytes)};
    if (needed(how) < available_bytes())
      return how;
  }
  return std::nullopt;
}

void measure(const setting& s, const options& how, measurements& out) {
  auto name = name_of(s);
  auto setup = what_fits(s);
  if (!setup) {
    char text[96];
    std::snprintf(text, sizeof(text), "needs %.0f GB of memory, %.0f are free",
                  static_cast<double>(s.bytes) * (3 + s.receivers) * 1.05 / 1e9,
                  available_bytes() / 1e9);
    out.push_back({.name = name, .missing = text});
    return;
  }
  if (setup->tensor_bytes < s.bytes)
    name += " (all tensors share 1 GB in turn)";
  else if (setup->parameter_bytes < s.bytes)
    name += " (parameters share 1 GB in turn)";
  std::optional<weightsync_processes> processes(std::in_place, *setup);
  auto& world = *processes;
  std::vector<double> wire, total, publish, verify, pause, other, ratio, whole;
  for (int round = 0; round < (how.quick ? 5 : 9); ++round) {
    auto r = world.sync();
    if (round < 2) // each slot's first use: pages are mapped
      continue;
    auto bytes = static_cast<double>(s.bytes) * s.receivers / 1e9;
    wire.push_back(bytes / r.wire_s);
    total.push_back(bytes / r.total_s);
    publish.push_back(static_cast<double>(s.bytes) / 1e9 / r.publish_s);
    verify.push_back(r.verify_s / r.total_s);
    whole.push_back(r.publish_s + r.total_s);
    pause.push_back(r.pause_s / (r.total_s + r.publish_s));
    // Right after it, so that what else the machine does is the same for both.
    other.push_back(s.transports == "tcp" ? ucx_perftest_gb_s(how.quick ? 200 : 1000)
                                          : world.memcpy_gb_s());
    ratio.push_back(other.back() > 0 ? wire.back() / other.back() : 0);
  }
  measurement bandwidth{.name = name + ": wire", .value = median(wire), .unit = "GB/s"};
  if (s.transports == "tcp") {
    bandwidth.against = "ucx_perftest -t ucp_get";
    bandwidth.bar = 0.9;
  } else {
    bandwidth.against = "memcpy by as many threads";
    bandwidth.bar = 0.8;
  }
  if (median(other) > 0)
    bandwidth.ratio = median(ratio);
  else
    bandwidth.missing = "ucx_perftest (Debian's ucx-utils) is not there";
  out.push_back(bandwidth);
  out.push_back({.name = name + ": pulled, proven and in place", .value = median(total),
                 .unit = "GB/s"});
  out.push_back({.name = name + ": published (copy and checksums)", .value = median(publish),
                 .unit = "GB/s"});
  out.push_back({.name = name + ": share of checksums in the pull", .value = median(verify),
                 .unit = ""});
  // Not a generator's pause: that has the re-prefill in it, and the engine reports it.
  out.push_back({.name = name + ": exchanging the tensor sets over the total",
                 .value = median(pause), .unit = "", .bar = 0.02, .bar_is_upper = true});
  processes.reset(); // its memory is the peers' now
  compare_with_peers(s, name, median(whole), out);
}

} // namespace

measurements weightsync(const options& how) {
  measurements out;
  std::vector<std::size_t> sizes = {100'000'000};
  if (!how.quick)
    sizes.insert(sizes.end(), {1'000'000'000, 4'000'000'000});
  for (const auto* transports : {"", "tcp"})
    for (auto bytes : sizes)
      for (int receivers : {1, 3})
        measure({bytes, receivers, transports}, how, out);
  return out;
}

} // namespace millrace::bench
