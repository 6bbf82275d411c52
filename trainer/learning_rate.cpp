#include "trainer/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace millrace::trainer {

double learning_rate_schedule::at(std::int64_t step) const {
  if (step < warmup_steps)
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps + 1);
  if (decay == lr_schedule::constant || total_steps <= warmup_steps)
    return peak;
  auto done = std::clamp(static_cast<double>(step - warmup_steps)
                           / static_cast<double>(total_steps - warmup_steps),
                         0.0, 1.0);
  auto left = decay == lr_schedule::linear ? 1 - done
                                           : 0.5 * (1 + std::cos(std::numbers::pi * done));
  return peak * (floor + (1 - floor) * left);
}

} // namespace millrace::trainer
