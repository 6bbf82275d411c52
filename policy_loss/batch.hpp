#pragma once

#include "policy_loss/layout.hpp"
#include "policy_loss/loss.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace millrace::policy_loss {

/// What is done with a valid token whose log-ratio is not finite.
enum class nonfinite_rule : std::uint8_t {
  drop,      ///< leaves the numerator and is counted; the denominator stays
  areal_zero ///< its log-ratio becomes 0 and it stays (as AReaL does)
};

/// At which level a ratio is taken; the result is given to each token of the sequence.
enum class ratio_level : std::uint8_t {
  token,
  sequence, ///< the product over the sequence's tokens
  geometric ///< their geometric mean
};

/// The inputs of a loss on the flattened layout in fp64, sanitised: whatever a masked position
/// holds, and non-finite values at valid ones, never reach an exp or a gradient.
class batch {
public:
  batch(const inputs& in, nonfinite_rule nonfinite, double log_ratio_clamp);

  [[nodiscard]] const layout& where() const { return layout_; }
  [[nodiscard]] const at::Tensor& mask() const { return mask_; } ///< [N] bool, valid tokens
  /// [N]; @throws millrace::user_error when there are none
  [[nodiscard]] const at::Tensor& advantages() const;
  [[nodiscard]] const at::Tensor& logp_new() const { return logp_new_; } ///< [N], carries gradient

  /// log θ, 0 where it is not finite (the token then counts as non-finite): for A·log θ terms.
  at::Tensor clean_logp_new();

  /// Log-ratios to the current policy: log θ/prox, log θ/μ, log θ/ref. They carry gradient; 0
  /// outside the mask and where not finite; clamped to ±log_ratio_clamp.
  at::Tensor log_new_over_prox();
  at::Tensor log_new_over_behav();
  at::Tensor log_new_over_ref();

  /// log prox/μ: no gradient.
  at::Tensor log_prox_over_behav();

  /// Any log-ratio of two [N] tensors, sanitised the same way.
  at::Tensor log_ratio(const at::Tensor& numerator, const at::Tensor& denominator);

  /// An input as detached [N]; @throws millrace::user_error naming it when undefined.
  [[nodiscard]] at::Tensor logp_prox() const;
  [[nodiscard]] at::Tensor logp_behav() const;

  /// The caller's outcome per sequence, for each token [N].
  [[nodiscard]] at::Tensor rewards() const;

  /// A log-ratio taken at `level`; every ratio that can drop tokens must have been formed before.
  [[nodiscard]] at::Tensor at_level(ratio_level level, const at::Tensor& log_ratio) const;

  /// exp with the argument bounded above, so that products of a few ratios stay finite.
  [[nodiscard]] at::Tensor exp(const at::Tensor& log_ratio) const;

  /// Valid tokens with something non-finite in what was asked for so far.
  [[nodiscard]] const at::Tensor& nonfinite() const { return nonfinite_; }
  [[nodiscard]] bool drops() const { return rule_ == nonfinite_rule::drop; }

  /// Tokens that stay: valid, without the dropped ones.
  [[nodiscard]] at::Tensor kept() const;

  /// `inputs::keep` as [N] bool; undefined when absent.
  [[nodiscard]] const at::Tensor& given_keep() const { return given_keep_; }

private:
  at::Tensor required(const at::Tensor& given, const char* name) const;

  const inputs& in_;
  layout layout_;
  nonfinite_rule rule_;
  double log_ratio_clamp_;
  double exp_limit_;
  at::Tensor mask_, advantages_, logp_new_, nonfinite_, given_keep_;
};

} // namespace millrace::policy_loss
