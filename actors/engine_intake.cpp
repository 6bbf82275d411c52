#include "actors/engine_intake.hpp"

#include "runtime/log.hpp"

#include <chrono>
#include <utility>

namespace millrace {

engine_intake::engine_intake(std::shared_ptr<weightsync::transport> carrier,
                             std::shared_ptr<generation::engine> engine, double timeout_s,
                             std::int32_t max_attempts, bool delta)
  : carrier_(std::move(carrier)), engine_(std::move(engine)),
    puller_(*carrier_, engine_->staging(), weightsync::replicated(engine_->staging())),
    timeout_s_(timeout_s), max_attempts_(max_attempts), delta_(delta) {
}

intake_report engine_intake::pull(const std::string& manifest, std::function<void()> on_progress) {
  auto bytes = std::as_bytes(std::span{manifest.data(), manifest.size()});
  auto m = weightsync::manifest_from_binary(bytes);
  weightsync::pull_options o;
  o.timeout_s = timeout_s_;
  o.max_attempts = max_attempts_;
  o.on_progress = std::move(on_progress);
  o.base = base_.tensors();
  o.base_version = base_.number();
  if (!std::exchange(link_measured_, true))
    puller_.measure_link(m, 0.05); // what later pulls are compared with
  auto report = puller_.pull(m, o);
  if (report.ready()) {
    auto began = std::chrono::steady_clock::now();
    if (delta_)
      base_.keep(engine_->staging(), m.number);
    engine_->prepare();
    report.load_s
      += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  } else {
    log::warning("receiver", report.error);
  }
  return {report.ready(),    report.error,  report.bytes,      report.wire_s, report.verify_s,
          report.load_s,     report.quantise_s, report.link_share, report.retries, report.saved_bytes};
}

} // namespace millrace
