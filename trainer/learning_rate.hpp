#pragma once

#include "runtime/config/settings.hpp"

#include <cstdint>

namespace millrace::trainer {

/// How the learning rate changes over the optimiser's life, in training steps.
struct learning_rate_schedule {
  double peak = 1e-3;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0; ///< where the decay ends; the rate stays at its floor after it
  lr_schedule decay = lr_schedule::constant;
  double floor = 0; ///< share of the peak that linear and cosine end at

  /// At step 0, 1, …: grows linearly to the peak, which step `warmup_steps` is the first to have,
  /// then decays. Never negative.
  [[nodiscard]] double at(std::int64_t step) const;
};

} // namespace millrace::trainer
