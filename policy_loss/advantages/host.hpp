#pragma once

#include "policy_loss/advantage.hpp"
#include "policy_loss/layout.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace millrace::policy_loss::advantages {

/// An estimator's inputs on the host in fp64. Advantages are a few numbers per token and carry no
/// gradient: plain loops say what they do, for any layout and mask.
class host_inputs {
public:
  explicit host_inputs(const advantage_inputs& in);

  [[nodiscard]] bool has_tokens() const { return where_.has_value(); }
  [[nodiscard]] std::size_t sequences() const;
  [[nodiscard]] const std::vector<char>& valid() const { return valid_; }

  /// First and one past the last token of sequence s.
  [[nodiscard]] std::size_t begin(std::size_t s) const;
  [[nodiscard]] std::size_t end(std::size_t s) const;

  /// [S]; @throws millrace::user_error when absent.
  [[nodiscard]] std::vector<double> rewards() const;
  /// For each group the sequences in it, with finite rewards only.
  [[nodiscard]] std::vector<std::vector<std::size_t>>
  groups(const std::vector<double>& rewards) const;

  /// Per token, 0 outside the mask and where not finite; @throws millrace::user_error when absent.
  [[nodiscard]] std::vector<double> tokens(const at::Tensor& given, const char* name) const;
  /// The given token rewards; without: each outcome on its sequence's last valid token.
  [[nodiscard]] std::vector<double> token_rewards() const;

  /// A per-token result in the caller's layout and on its device.
  [[nodiscard]] at::Tensor per_token(const std::vector<double>& values) const;
  /// A per-sequence result: given to each valid token where there are tokens, else [S].
  [[nodiscard]] at::Tensor per_sequence(const std::vector<double>& values) const;

private:
  const advantage_inputs& in_;
  std::optional<layout> where_;
  std::vector<char> valid_;
};

/// (x − mean)/√(var + eps) over the valid tokens (unbiased variance), in place; 0 elsewhere, and
/// everywhere when fewer than two are valid.
void whiten(std::vector<double>& values, const std::vector<char>& valid, double eps);

} // namespace millrace::policy_loss::advantages
