#include "trainer/full_device.hpp"

#include "runtime/error.hpp"

namespace millrace::trainer {

namespace {

std::string lower_compute(const settings& s) {
  return s.trainer.compute == compute_dtype::fp32 ? ", set trainer.compute to \"bf16\"" : "";
}

} // namespace

std::string less_trainer_memory(const settings& s) {
  auto advice = "lower trainer.micro_batch_tokens" + lower_compute(s);
  if (!s.trainer.activation_checkpointing)
    advice += ", set trainer.activation_checkpointing";
  if (!s.trainer.offload_optimizer)
    advice += ", set trainer.offload_optimizer";
  return advice;
}

std::string less_worker_memory(const settings& s) {
  return "lower trainer.micro_batch_tokens" + lower_compute(s)
         + ", set algorithm.dedicated.device to \"cpu\"";
}

void tell_full_device(const c10::OutOfMemoryError& e, const std::string& option,
                      const std::string& advice) {
  const std::string why = e.what_without_backtrace();
  throw user_error(option + ": a CUDA device's memory is full (" + why.substr(0, why.find('\n'))
                   + "); what helps: " + advice + "; `millrace check` tells what takes how much");
}

} // namespace millrace::trainer
