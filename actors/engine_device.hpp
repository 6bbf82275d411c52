#pragma once

#include "rollout/engine.hpp"
#include "runtime/config/settings.hpp"

#include <string>

namespace millrace {

/// The type of an engine's matrices at this precision.
constexpr dtype type_of(weight_dtype t) {
  switch (t) {
    case weight_dtype::fp32: return dtype::f32;
    case weight_dtype::bf16: return dtype::bf16;
    case weight_dtype::int8: return dtype::i8;
    default: return dtype::f8_e4m3;
  }
}

/// Sets what an engine computes on: CUDA device `index` of those that this process sees, modulo their
/// number, or the CPU. `where` names the option that asked for it. \throws user_error where there is
/// no such device
void place_engine(generation::engine_options& options, compute_device device, int index,
                  const std::string& where);

} // namespace millrace
