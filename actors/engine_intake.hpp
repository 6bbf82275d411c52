#pragma once

#include "actors/receiver_actor.hpp"
#include "rollout/engine.hpp"
#include "weightsync/delta_base.hpp"
#include "weightsync/pull.hpp"

#include <memory>

namespace millrace {

/// Pulls published weights into an engine's staging buffers over a transport.
class engine_intake : public weight_intake {
public:
  /// `delta`: keep a copy of what was pulled last, and pull only what changed since where that is
  /// published.
  engine_intake(std::shared_ptr<weightsync::transport> carrier,
                std::shared_ptr<generation::engine> engine, double timeout_s,
                std::int32_t max_attempts, bool delta = false);
  intake_report pull(const std::string& manifest, std::function<void()> on_progress) override;

private:
  std::shared_ptr<weightsync::transport> carrier_;
  std::shared_ptr<generation::engine> engine_;
  weightsync::puller puller_;
  bool link_measured_ = false;
  double timeout_s_;
  std::int32_t max_attempts_;
  bool delta_;
  weightsync::delta_base base_;
};

} // namespace millrace
