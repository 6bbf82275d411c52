#pragma once

#include "policy_loss/statistics.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace millrace::policy_loss {

/// Effective sample size as a fraction of the number of weights, (Σw)²/(N·Σw²), in (0, 1].
/// 1 for no weights at all.
double ess_fraction(std::span<const double> weights);

/// Learning-rate factor √(ESS / reference) from unclipped sequence weights (VCPO 2602.17616, eq.
/// 5).
double vcpo_lr_scale(double ess_frac, double ess_ref);

/// AReaL's admission rule in its own terms: ⌊(N − 1)/B⌋ ≤ v + η, with N all trajectories admitted
/// so far, the new one included. (The runtime counts what is outstanding instead; see rollout/.)
bool areal_admission(std::int64_t admitted, std::int64_t batch, std::int64_t eta,
                     std::int64_t version);

/// How far training side and generator disagree, per token, w = exp(log train − log infer); samples
/// come from the generator. Statistics: ess_frac, ess_frac_verl_clamped (weights clamped to
/// [1/cap, cap] with verl's 1e-8), kl_infer_train_k1/k2/k3, kl_train_infer_is, chi2_token,
/// ratio_mean/max/min, mask_frac_token (outside [1/mask_c, mask_c]), max_abs_prob_diff.
/// Tokens whose log-ratio is not finite are left out and counted (`nonfinite`).
statistics mismatch_stats(const at::Tensor& logp_train, const at::Tensor& logp_infer,
                          const at::Tensor& mask, double cap, double mask_c);

/// The same per sequence. Per-sequence results are [S].
struct sequence_stats_result {
  at::Tensor seq_log_ratio; ///< Σ_t log w, [S]
  at::Tensor seq_ratio;     ///< exp of it: the product of ratios
  at::Tensor geo_ratio;     ///< exp(mean_t log w): the geometric mean
  at::Tensor lengths;       ///< valid tokens
  /// ess_frac and chi2 of products (seq_) and geometric means (geo_), means and extremes,
  /// train_ppl, infer_ppl, log_ppl_diff, log_ppl_abs_diff, ppl_ratio, mask_frac_seq, mask_frac_geo.
  statistics stats;
};
sequence_stats_result sequence_stats(const at::Tensor& logp_train, const at::Tensor& logp_infer,
                                     const at::Tensor& mask,
                                     const std::vector<std::int32_t>& cu_seqlens, double cap,
                                     double mask_c);

/// Staleness of trained tokens, current version − token's version.
struct staleness_stats_result {
  std::map<std::int64_t, std::int64_t> histogram; ///< staleness → tokens
  double mean = 0;
  std::int64_t max = 0, min = 0;
  std::vector<std::int64_t> head; ///< per sequence, its oldest token's; 0 where it has none
  std::vector<std::int64_t> tail; ///< its newest token's
  std::vector<std::int64_t> span; ///< head − tail: > 0 where the rollout was interrupted
  double mixed_version_seq_frac = 0;
};
staleness_stats_result staleness_stats(const at::Tensor& versions, const at::Tensor& mask,
                                       const std::vector<std::int32_t>& cu_seqlens,
                                       std::int64_t current_version);

} // namespace millrace::policy_loss
