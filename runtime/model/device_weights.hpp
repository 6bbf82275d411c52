#pragma once

#include "runtime/model/model_config.hpp"
#include "runtime/tensor_view.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millrace::model {

/// Each row of x [n, k] in E4M3, with a scale of its own, [n, 1] fp32: its largest magnitude becomes
/// 448, as weight sync quantises.
std::pair<at::Tensor, at::Tensor> quantised_rows(const at::Tensor& x);

/// A weight matrix [n, k] on a device: fp32, bf16, or E4M3 with a scale per row. The latter is padded
/// with zeros to multiples of 16, which the GPU's products ask for.
struct device_matrix {
  at::Tensor values;
  at::Tensor scales; ///< [1, n] fp32; undefined unless E4M3
  at::Tensor bias;   ///< undefined: none
  std::int64_t n = 0, k = 0;

  /// x [N, k] · valuesᵀ + bias, in x's type, which is the values' (bf16 for E4M3: x is then quantised
  /// by row).
  [[nodiscard]] at::Tensor product(const at::Tensor& x) const;
};

/// Whether the device can do E4M3's products: tries one.
bool has_row_scales(c10::Device device);

struct device_layer {
  at::Tensor input_norm, post_norm; ///< fp32, as the next
  at::Tensor q_norm, k_norm;        ///< undefined without qk-norm
  device_matrix qkv, output, gate_up, down;
};

/// A model's weights on one device, twice: those that are computed with, and those that arrive.
/// A swap copies the latter over the former, within the device: at a GPU's bandwidth that takes about
/// as long as one decode step, and a third copy, for exchanging pointers instead, would take a third
/// of what models can be held. Joins what is multiplied with the same rows (q, k, v; gate, up).
class device_weights {
public:
  /// `type`: f32, bf16 or f8_e4m3, of which embedding and head stay bf16, as is usual: what they lose
  /// would be seen in every logit.
  device_weights(const model_config& config, dtype type, c10::Device device);

  /// See decoder::staging().
  [[nodiscard]] std::vector<tensor_view> staging() const;
  /// The caller orders it against what computes; returns when what was staged may be overwritten.
  void swap();
  [[nodiscard]] bool ready() const { return ready_; }
  [[nodiscard]] std::int64_t bytes() const;

  /// What products take and give: fp32, or else bf16.
  [[nodiscard]] at::ScalarType compute_type() const {
    return type_ == dtype::f32 ? at::kFloat : at::kBFloat16;
  }

  at::Tensor embedding; ///< [V, d]
  at::Tensor final_norm;
  at::Tensor head; ///< [V, d]; the embedding itself where that is tied
  std::vector<device_layer> layers;

private:
  /// A parameter that arrives, and its place in what is computed with.
  struct arrival {
    tensor_view view;
    at::Tensor staged, place;
  };

  void add(std::string name, dtype type, std::vector<std::int64_t> shape, at::Tensor place);
  void vector(const std::string& name, at::Tensor& whole, std::int64_t n);
  void table(const std::string& name, at::Tensor& whole, std::int64_t n, std::int64_t k);
  void matrix(const std::string& prefix, const std::vector<std::string>& names,
              const std::vector<std::int64_t>& rows, std::int64_t k, bool biased,
              device_matrix& whole);
  void layer(const model_config& c, std::int64_t index);

  dtype type_;
  c10::Device device_;
  std::vector<arrival> arrivals_;
  bool ready_ = false;
};

} // namespace millrace::model
