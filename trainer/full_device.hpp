#pragma once

// A CUDA device whose memory is full, told of with what would help.

#include "runtime/config/settings.hpp"

#include <c10/util/Exception.h>

#include <string>

namespace millrace::trainer {

/// What lowers the memory that the trainer takes on its device, of what isn't set so already.
[[nodiscard]] std::string less_trainer_memory(const settings& s);
/// The same for the old-logit worker.
[[nodiscard]] std::string less_worker_memory(const settings& s);

/// \throws user_error
[[noreturn]] void tell_full_device(const c10::OutOfMemoryError& e, const std::string& option,
                                   const std::string& advice);

/// work() of the trainer. \throws user_error where its device is full
template <class Work>
auto within_trainer_memory(const settings& s, Work work) {
  try {
    return work();
  } catch (const c10::OutOfMemoryError& e) {
    tell_full_device(e, "trainer.device", less_trainer_memory(s));
  }
}

/// work() of the old-logit worker. \throws user_error where its device is full
template <class Work>
auto within_worker_memory(const settings& s, Work work) {
  try {
    return work();
  } catch (const c10::OutOfMemoryError& e) {
    tell_full_device(e, "algorithm.dedicated.device", less_worker_memory(s));
  }
}

} // namespace millrace::trainer
