#pragma once

#include "policy_loss/loss.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace millrace::policy_loss::testing {

/// A padded batch of seeded random log-probs a few tenths apart, with ragged lengths, holes in the
/// mask and (for `empty` > 0) sequences without any valid token.
struct random_batch {
  std::int64_t rows, columns;
  std::vector<double> logp_new, logp_prox, logp_behav, logp_ref, advantages, rewards;
  std::vector<char> mask;
  std::vector<std::int64_t> lengths; ///< tokens of each row, masked holes included

  random_batch(std::mt19937_64& random, std::int64_t rows, std::int64_t columns,
               double spread = 0.3);

  [[nodiscard]] bool valid(std::int64_t row, std::int64_t column) const {
    return mask[static_cast<std::size_t>(row * columns + column)] != 0;
  }

  /// [B, T] tensors.
  [[nodiscard]] inputs padded(at::ScalarType type = at::kDouble) const;
  /// [N] tensors of each row's first `lengths` tokens.
  [[nodiscard]] inputs packed(at::ScalarType type = at::kDouble) const;
  /// The same of rows [first, last).
  [[nodiscard]] inputs packed_rows(std::int64_t first, std::int64_t last,
                                   at::ScalarType type = at::kDouble) const;
};

/// A loss with parameters under which most of its branches are taken on a random_batch.
struct example {
  std::string name;
  nlohmann::json params;
};

/// Every built-in loss, several with more than one set of parameters; `agg` is left to the test.
std::vector<example> examples();

/// The aggregations with each denominator, and what they need.
std::vector<nlohmann::json> aggregations();
/// A third of them, another one for each k: all are met over three examples in a row.
std::vector<nlohmann::json> some_aggregations(std::size_t k);

/// loss and gradient with respect to logp_new.
struct evaluated {
  outputs out;
  at::Tensor gradient;
};
evaluated evaluate(const loss& method, const inputs& in);

double largest_difference(const at::Tensor& a, const at::Tensor& b);
bool has_nan(const at::Tensor& t);

} // namespace millrace::policy_loss::testing
