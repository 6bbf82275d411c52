#pragma once

#include "runtime/model/kernels.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/tensor_view.hpp"

#include <cstdint>
#include <vector>

namespace millrace::model {

/// A weight matrix as the gemm kernel reads it.
struct packed_matrix {
  const float* data = nullptr;
  const float* bias = nullptr; ///< null: none
  std::int64_t n = 0, k = 0;
};

struct layer_weights {
  const float *input_norm = nullptr, *post_norm = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr; ///< null without qk-norm
  packed_matrix qkv, output, gate_up, down;
};

/// One version's weights, ready to compute with.
struct weight_set {
  std::vector<float> memory;
  const float* embedding = nullptr; ///< [V, d], row-major
  const float* final_norm = nullptr;
  packed_matrix head;
  std::vector<layer_weights> layers;
};

/// Two weight sets and the buffer that new weights arrive in. Arrival and verification see plain
/// Hugging Face tensors; computing sees packed ones; the swap between sets is a pointer.
class packed_weights {
public:
  packed_weights(const model_config& config, const kernel_table& kernels);

  [[nodiscard]] std::vector<tensor_view> staging() const;
  /// Packs the staged weights into the spare set. Touches neither the current set nor anything
  /// that computing reads.
  void prepare();
  void swap();
  /// Precondition: swap() was called.
  [[nodiscard]] const weight_set& current() const { return sets_[current_]; }
  [[nodiscard]] bool ready() const { return current_ >= 0; }
  /// Of one version, unpacked.
  [[nodiscard]] std::int64_t bytes() const {
    return static_cast<std::int64_t>(staging_.size() * sizeof(float));
  }

private:
  model_config config_;
  const kernel_table& kernels_;
  std::vector<parameter_shape> shapes_;
  mutable std::vector<float> staging_; ///< written to through staging()'s views
  weight_set sets_[2];
  int current_ = -1;
  bool prepared_ = false;
};

} // namespace millrace::model
