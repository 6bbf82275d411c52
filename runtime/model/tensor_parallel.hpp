#pragma once

// One transformer over several ranks (Megatron-LM, Shoeybi et al. 2019): queries, keys, values, gate
// and up are split by their outputs, the projections after them by their inputs, embedding and head
// by vocabulary. Norms and the biases of the latter projections are the same on every rank.

#include "runtime/model/model_config.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace millrace::model {

/// A rank's place in its tensor-parallel group, and what it does together with the others: in place,
/// the same bits everywhere afterwards.
struct tensor_group {
  std::int64_t rank = 0, size = 1;
  std::function<void(at::Tensor&)> sum, largest;
  /// Sequence parallel (Korthikanti et al. 2022): between the split layers each rank has its share of
  /// the tokens only, rows [rank·c, (rank + 1)·c) of all, c = ⌈N / size⌉, the last padded.
  bool sequence = false;
  /// part [c, d] of every rank → whole [size·c, d], in rank order; and whole of every rank, summed →
  /// this rank's part. Where `sequence` is set.
  std::function<void(const at::Tensor& part, at::Tensor& whole)> gather;
  std::function<void(const at::Tensor& whole, at::Tensor& part)> scatter_sum;
};

/// The shape of one rank's part. \throws user_error where it can't be split: heads, kv_heads and
/// intermediate must be multiples of the group's size
model_config local_config(const model_config& whole, std::int64_t rank, std::int64_t size);

/// Where a rank's part of a parameter lies in the whole one.
struct parameter_slice {
  int dimension = -1; ///< that is split; −1: every rank has all of it
  std::int64_t begin = 0, length = 0;
  /// Every rank's gradient is a part of the sum: norms of query and key heads.
  bool partial_gradient = false;

  [[nodiscard]] at::Tensor of(const at::Tensor& whole) const {
    return dimension < 0 ? whole : whole.narrow(dimension, begin, length);
  }
};

/// `name` is a parameter's, perhaps with something before it ("exp_avg/model.norm.weight").
parameter_slice slice_of(const model_config& whole, const std::string& name, std::int64_t rank,
                         std::int64_t size);

} // namespace millrace::model
