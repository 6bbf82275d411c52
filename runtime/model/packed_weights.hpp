#pragma once

#include "runtime/model/kernels.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/model/page_memory.hpp"
#include "runtime/tensor_view.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace::model {

/// A weight matrix as the products read it, in its own precision.
struct packed_matrix {
  const std::byte* data = nullptr;
  const float* scales = nullptr; ///< of 8-bit integers: one per output
  const float* bias = nullptr;   ///< null: none
  std::int64_t n = 0, k = 0;
  dtype type = dtype::f32; ///< f32, bf16 or i8

  /// Bytes of n outputs packed.
  [[nodiscard]] static std::size_t bytes(dtype type, std::int64_t n, std::int64_t k);
  /// Row `row` of the matrix, [k] fp32.
  void unpack(std::int64_t row, float* out) const;
};

struct layer_weights {
  const float *input_norm = nullptr, *post_norm = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr; ///< null without qk-norm
  packed_matrix qkv, output, gate_up, down;
};

/// One version's weights, ready to compute with.
struct weight_set {
  page_memory memory;
  packed_matrix embedding; ///< [V, d]; the head itself where that is tied
  const float* final_norm = nullptr;
  packed_matrix head;
  std::vector<layer_weights> layers;
};

/// Two weight sets and the buffer that new weights arrive in. Arrival and verification see plain
/// Hugging Face tensors; computing sees packed ones; the swap between sets is a pointer. Matrices
/// are kept in one precision everywhere, vectors in fp32.
class packed_weights {
public:
  /// `type`: f32, bf16 or i8.
  packed_weights(const model_config& config, const kernel_table& kernels, dtype type);

  /// Matrices in the set's type, vectors in fp32. 8-bit matrices are followed by their scales,
  /// fp32, one per row, under the matrix' name and "_scale".
  [[nodiscard]] std::vector<tensor_view> staging() const;
  /// Packs the staged weights into the spare set. Touches neither the current set nor anything
  /// that computing reads.
  void prepare();
  void swap();
  /// Precondition: swap() was called.
  [[nodiscard]] const weight_set& current() const { return sets_[current_]; }
  [[nodiscard]] bool ready() const { return current_ >= 0; }
  [[nodiscard]] dtype type() const { return type_; }
  /// Of one version, unpacked.
  [[nodiscard]] std::int64_t bytes() const {
    return static_cast<std::int64_t>(staged_matrices_.size() + staged_vectors_.size());
  }

private:
  model_config config_;
  const kernel_table& kernels_;
  dtype type_;
  std::vector<parameter_shape> shapes_;
  // Written to through staging()'s views. Apart, so that matrices which are neighbours in the model
  // are in memory too, and are packed as one.
  page_memory staged_matrices_, staged_vectors_;
  weight_set sets_[2];
  int current_ = -1;
  bool prepared_ = false;
};

} // namespace millrace::model
