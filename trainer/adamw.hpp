#pragma once

#include "runtime/model/transformer.hpp"
#include "runtime/tensor_view.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace millrace::trainer {

struct adamw_options {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0; ///< of matrices; norms and biases are never decayed
  double grad_clip = 1;    ///< largest global norm; 0: off
};

/// AdamW (Loshchilov and Hutter, 2019) over the flat parameters and gradients of one model, with
/// clipping by the gradient's global norm. fp32; its state is saved and restored bit by bit.
class adamw {
public:
  /// The network must outlive this, and its gradients are this one's from now on: backward() adds
  /// into them, step() and discard() zero them.
  adamw(model::transformer& network, adamw_options options);

  struct outcome {
    double grad_norm = 0; ///< before clipping
    bool clipped = false;
    bool applied = false; ///< false: the norm was not finite, nothing changed but the zeroing
  };

  /// One update from the accumulated gradient, which is zero afterwards.
  outcome step(double learning_rate);

  /// Forgets the accumulated gradient.
  void discard();

  /// Updates made.
  [[nodiscard]] std::int64_t updates() const { return updates_; }

  /// Both moments of every parameter, "exp_avg/NAME" and "exp_avg_sq/NAME": to be written to a
  /// file, or filled from one (then set_updates() too).
  [[nodiscard]] std::vector<tensor_view> state() const;
  void set_updates(std::int64_t updates);

private:
  /// Neighbours in memory that are decayed alike.
  struct segment {
    at::Tensor parameters, gradient, mean, square, updates;
    double weight_decay = 0;
  };

  model::transformer& network_;
  adamw_options options_;
  at::Tensor gradient_, mean_, square_; ///< [P]
  std::vector<segment> segments_;
  std::int64_t updates_ = 0;
};

} // namespace millrace::trainer
