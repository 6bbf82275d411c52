#pragma once

#include "runtime/config/settings.hpp"
#include "runtime/model/transformer.hpp"
#include "runtime/tensor_view.hpp"
#include "trainer/gradient_reducer.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace millrace::trainer {

class rank_mesh;

struct adamw_options {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0; ///< of matrices; norms and biases are never decayed
  double grad_clip = 1;    ///< largest global norm; 0: off
  /// The state lies in host memory, and updates are made there, wherever the model is (as ZeRO-Offload,
  /// Ren et al. 2021): gradients come from its device, parameters go back to it.
  bool offload = false;
};

/// trainer.beta1 … trainer.grad_clip, trainer.offload_optimizer.
adamw_options optimizer_options(const trainer_settings& t);

/// AdamW (Loshchilov and Hutter, 2019) over the flat parameters and gradients of one model, with
/// clipping by the gradient's global norm. fp32; its state is saved and restored bit by bit.
///
/// Over ranks (`mesh`) step() and discard() are called on all of them, with gradients summed over
/// the data-parallel ones; the norm is the whole model's on every rank, so that all clip, or skip an
/// update, alike. With trainer.parallel.zero1 (`sharded`) a rank has both moments of its own part of
/// the flat buffer only, updates that, and sends it to the others.
///
/// All of it is on the network's device, unless it is offloaded; then the host has both moments, a copy
/// of the parameters that it updates and room for their gradient. An offloaded update gives the bits
/// that the same update gives on a CPU.
class adamw {
public:
  /// The network must outlive this, and its gradients are this one's from now on: backward() adds
  /// into them, step() and discard() zero them.
  adamw(model::transformer& network, adamw_options options, rank_mesh* mesh = nullptr,
        bool sharded = false);

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
  /// file, or filled from one (then set_updates() too). Sharded, only between gather_state() and
  /// scatter_state(), on all ranks; then it is in host memory.
  [[nodiscard]] std::vector<tensor_view> state() const;
  void gather_state();
  /// The same for what this rank has: where sharded, of each parameter the stretch of elements that
  /// it owns, [n]; parameters with none are left out.
  [[nodiscard]] std::vector<tensor_view> own_state() const;
  /// Keeps this rank's part of the state.
  void scatter_state();
  void set_updates(std::int64_t updates);

  /// Bytes in host memory, where it is offloaded; 0 elsewhere. What crosses to a CUDA device lies in
  /// pages that libtorch hands out in powers of two.
  [[nodiscard]] std::int64_t offloaded_bytes() const;

private:
  /// Neighbours in memory that are decayed alike. The first five are where updates are made.
  struct segment {
    at::Tensor parameters, gradient, mean, square, updates;
    at::Tensor model_gradient; ///< the network's own
    double weight_decay = 0;
    bool replicated = false; ///< the same on every tensor-parallel rank
  };
  struct stretch {
    std::int64_t begin = 0, end = 0;
    bool decayed = false, replicated = false;
  };
  [[nodiscard]] std::vector<stretch> stretches() const;
  [[nodiscard]] double gradient_norm();
  void spread_parameters();
  [[nodiscard]] at::Tensor own_part(const at::Tensor& flat) const;
  void parameters_to_host();

  model::transformer& network_;
  adamw_options options_;
  rank_mesh* mesh_;
  bool sharded_;
  flat_range own_;                      ///< that this rank updates
  at::Tensor gradient_;                 ///< [P]
  at::Tensor mean_, square_;            ///< of own_
  at::Tensor host_parameters_, host_gradient_; ///< of own_, where it is offloaded
  at::Tensor whole_mean_, whole_square_; ///< [P], while the state is gathered
  std::vector<segment> segments_;
  std::int64_t updates_ = 0;
};

} // namespace millrace::trainer
