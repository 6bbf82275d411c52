#pragma once

#include "policy_loss/params.hpp"
#include "policy_loss/token_loss.hpp"

#include <ATen/core/Tensor.h>

#include <optional>

namespace millrace::policy_loss {

/// PPO's interval for a ratio, [1 − eps_low, 1 + eps_high], and the dual clip.
struct clip_options {
  double eps_low = 0.2;
  double eps_high = 0.2;
  std::optional<double> dual_c;

  /// Reads eps (both), eps_low, eps_high.
  static clip_options read(param_reader& params);
  /// The same and dual_clip_c.
  static clip_options read_with_dual(param_reader& params);

  [[nodiscard]] double low() const { return 1 - eps_low; }
  [[nodiscard]] double high() const { return 1 + eps_high; }
};

/// max(−A·r, −A·clip(r, 1 − eps_low, 1 + eps_high)), without gradient where the second is larger;
/// for A < 0 at most −c·A, without gradient beyond. (PPO 1707.06347; dual clip 1912.09729.) At
/// exactly a bound the token counts as not clipped.
/// Fills value and the clipped masks of the term.
void apply_ppo_clip(term& into, const at::Tensor& ratio, const at::Tensor& advantages,
                    const clip_options& options);

} // namespace millrace::policy_loss
