#pragma once

#include "policy_loss/batch.hpp"
#include "policy_loss/params.hpp"
#include "policy_loss/token_loss.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace millrace::policy_loss {

/// What the train–infer discrepancy r2 = prox/μ becomes as a factor on a token's loss.
enum class weight_mode : std::uint8_t {
  ratio, ///< r2
  none,  ///< 1
  clamp  ///< min(r2, weight_cap)
};

/// Mask and weight from the discrepancy, each at its own level: truncated importance sampling,
/// masked (IcePop, MIS), geometric, by sequence.
struct importance_options {
  ratio_level weight_level = ratio_level::token;
  weight_mode mode = weight_mode::ratio;
  double weight_cap = infinity;
  ratio_level disc_level = ratio_level::token;
  double disc_low = 0;
  double disc_high = infinity;

  /// Reads weight_level, weight_mode, weight_cap, disc_level, disc_low, disc_high.
  static importance_options read(param_reader& params);

  [[nodiscard]] bool looks_at_sequences() const {
    return weight_level != ratio_level::token || disc_level != ratio_level::token;
  }
};

/// Multiplies the term by sg(weight) and sets its mask M = 1{disc_low ≤ r2 ≤ disc_high}, from
/// log r2 [N] (sanitised, detached).
void correct_discrepancy(term& into, const batch& b, const at::Tensor& log_r2,
                         const importance_options& options);

/// Reads a ratio level: token, sequence, geometric.
ratio_level read_level(param_reader& params, std::string_view name, std::string_view meaning);

} // namespace millrace::policy_loss
