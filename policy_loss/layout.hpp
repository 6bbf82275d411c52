#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace millrace::policy_loss {

/// Which sequence each token belongs to, for both layouts of per-token tensors: packed (1-D with
/// offsets) and padded ([B, T]). All arithmetic is on the flattened [N] form, so that both layouts
/// give the same numbers.
class layout {
public:
  /// @throws millrace::invariant_error unless `per_token` is 1-D with matching offsets, or 2-D
  ///         without
  layout(const at::Tensor& per_token, const std::vector<std::int32_t>& cu_seqlens);

  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] std::int64_t sequences() const { return sequences_; }

  /// [N] i64: the sequence of each token.
  [[nodiscard]] const at::Tensor& sequence() const { return sequence_; }

  /// S+1 offsets into the flattened form.
  [[nodiscard]] const std::vector<std::int64_t>& offsets() const { return offsets_; }

  /// A per-token tensor as [N] in `type`; @throws millrace::invariant_error on another shape.
  [[nodiscard]] at::Tensor flat(const at::Tensor& per_token, at::ScalarType type,
                                const char* name) const;

  /// [N] to the caller's shape.
  [[nodiscard]] at::Tensor restored(const at::Tensor& flat) const;

  /// Sums of [N] by sequence: [S]. Differentiable.
  [[nodiscard]] at::Tensor sum(const at::Tensor& values) const;

  /// A value per sequence [S], given to each of its tokens: [N]. Differentiable.
  [[nodiscard]] at::Tensor to_tokens(const at::Tensor& per_sequence) const;

private:
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> offsets_;
  std::int64_t tokens_ = 0;
  std::int64_t sequences_ = 0;
  at::Tensor sequence_;
};

/// A mask as bool [N]: absent means all, and what is neither bool nor 0/1 counts by being non-zero.
at::Tensor flat_mask(const layout& where, const at::Tensor& mask, const at::Tensor& like);

} // namespace millrace::policy_loss
