#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace millrace::policy_loss {

/// β of the exponential average whose centre of mass lies half of a staleness window W back:
/// β = W/(W + 2), as β/(1 − β) = W/2. (Missing Old Logits 2605.12070, section 5.)
double beta_from_window(double stale_window);

/// β/(1 − β): how many updates back the average's centre of mass lies.
double center_of_mass(double beta);

/// PPO-EWMA's proximal policy (Batch size-invariance 2110.00641): a bias-corrected exponential
/// average of the parameters over updates,
///   W' = β·W + 1,  θ_p ← (β·W/W')·θ_p + θ/W',  from W = 1, θ_p = θ_0.
/// The average is kept in fp32 (fp64 for fp64 parameters), whatever the parameters' dtype. Holds
/// one copy of the parameters; plain tensor arithmetic without gradient.
class ewma {
public:
  /// Starts at `theta` (copied). @throws millrace::user_error unless 0 ≤ beta < 1
  ewma(double beta, const std::vector<at::Tensor>& theta);

  /// Takes in the parameters after an update, in the order of the constructor.
  void update(const std::vector<at::Tensor>& theta);

  /// θ_p = θ, W = 1: the history is forgotten.
  void reset(const std::vector<at::Tensor>& theta);

  /// Continues from a checkpoint: the total weight that total_weight() returned, and its averages.
  void restore(double total_weight, const std::vector<at::Tensor>& average);

  [[nodiscard]] double beta() const { return beta_; }
  [[nodiscard]] double total_weight() const { return total_weight_; }
  [[nodiscard]] const std::vector<at::Tensor>& average() const { return average_; }

private:
  double beta_;
  double total_weight_ = 1;
  std::vector<at::Tensor> average_;
};

/// What ewma_auto_reset compares with its threshold.
enum class reset_rule : std::uint8_t {
  mask,         ///< the fraction that the train–infer mask keeps
  mask_and_clip ///< the fraction that mask and clip leave active
};

/// Resets the average when it has drifted too far: after a step whose kept fraction is below τ
/// (strictly), effective from the next step. (2605.12070, section 6 and appendix E.)
class ewma_auto_reset {
public:
  explicit ewma_auto_reset(double tau, reset_rule rule = reset_rule::mask)
    : tau_(tau), rule_(rule) {}

  /// True when the average must be reset before the next step. `keep_frac` and `active_frac` are
  /// the statistics of the step just made, merged over its micro-batches.
  [[nodiscard]] bool after_step(double keep_frac, double active_frac = 1) const;

private:
  double tau_;
  reset_rule rule_;
};

} // namespace millrace::policy_loss
