#pragma once

#include "actors/receiver_actor.hpp"
#include "weightsync/delta_base.hpp"
#include "weightsync/pull.hpp"

#include <functional>
#include <memory>
#include <vector>

namespace millrace {

struct staging_options {
  double timeout_s = 30; ///< of a pull
  std::int32_t max_attempts = 3; ///< of one read
  /// Keep a copy of what was pulled last, and pull only what changed since where that is published.
  bool delta = false;
};

/// Pulls published weights into the same buffers again and again, over a transport.
class staging_intake : public weight_intake {
public:
  /// `proven` is called, by who pulls, when the buffers hold all of a version.
  staging_intake(std::shared_ptr<weightsync::transport> carrier, std::vector<tensor_view> buffers,
                 staging_options options, std::function<void(version)> proven);
  intake_report pull(const std::string& manifest, std::function<void()> on_progress) override;

private:
  std::shared_ptr<weightsync::transport> carrier_;
  std::vector<tensor_view> buffers_;
  weightsync::puller puller_;
  staging_options options_;
  std::function<void(version)> proven_;
  bool link_measured_ = false;
  weightsync::delta_base base_;
};

} // namespace millrace
