#include "actors/staging_intake.hpp"

#include "runtime/log.hpp"

#include <chrono>
#include <utility>

namespace millrace {

staging_intake::staging_intake(std::shared_ptr<weightsync::transport> carrier,
                               std::vector<tensor_view> buffers, staging_options options,
                               std::function<void(version)> proven)
  : carrier_(std::move(carrier)), buffers_(std::move(buffers)),
    puller_(*carrier_, buffers_, weightsync::replicated(buffers_)), options_(options),
    proven_(std::move(proven)) {
}

intake_report staging_intake::pull(const std::string& manifest, std::function<void()> on_progress) {
  auto bytes = std::as_bytes(std::span{manifest.data(), manifest.size()});
  auto m = weightsync::manifest_from_binary(bytes);
  weightsync::pull_options o;
  o.timeout_s = options_.timeout_s;
  o.max_attempts = options_.max_attempts;
  o.on_progress = std::move(on_progress);
  o.base = base_.tensors();
  o.base_version = base_.number();
  if (!std::exchange(link_measured_, true))
    puller_.measure_link(m, 0.05); // what later pulls are compared with
  auto report = puller_.pull(m, o);
  if (report.ready()) {
    auto began = std::chrono::steady_clock::now();
    if (options_.delta)
      base_.keep(buffers_, m.number);
    proven_(m.number);
    report.load_s
      += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  } else {
    log::warning("receiver", report.error);
  }
  return {report.ready(),    report.error,  report.bytes,      report.wire_s, report.verify_s,
          report.load_s,     report.quantise_s, report.link_share, report.retries, report.saved_bytes};
}

} // namespace millrace
