#pragma once

#include "runtime/model/decoder.hpp"
#include "runtime/model/kernels.hpp"
#include "runtime/model/kv_cache.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/model/packed_weights.hpp"
#include "runtime/model/page_memory.hpp"
#include "runtime/model/worker_pool.hpp"
#include "runtime/tensor_view.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace::model {

/// The decoder that computes on the processor, with two sets of weights. Matrix products are computed
/// in the weights' precision (fp32, bf16 or 8-bit integers); norms, attention, the cache and logits
/// are fp32. Every number is bitwise independent of what is computed beside it (kernels.hpp).
/// Torch-free.
class cpu_decoder final : public decoder {
public:
  /// A cache of `blocks` blocks; memory is touched only as it is used. Positions up to
  /// `max_context`. Throws user_error when memory cannot be had.
  cpu_decoder(const model_config& config, std::int32_t blocks, std::int32_t max_context,
              int threads, dtype weights = dtype::f32);

  void forward(std::span<const token_run> runs) override;
  [[nodiscard]] float* logits(std::size_t i) override {
    return logits_.data() + static_cast<std::int64_t>(i) * config_.vocab_size;
  }
  void copy_block(std::int32_t from, std::int32_t to) override;
  /// See packed_weights::staging().
  [[nodiscard]] std::vector<tensor_view> staging() override { return weights_.staging(); }
  void prepare() override {
    const worker_pool::lent_core core(pool_);
    weights_.prepare();
  }
  void swap() override { weights_.swap(); }
  [[nodiscard]] const model_config& config() const override { return config_; }
  [[nodiscard]] std::int64_t weight_bytes() const override { return weights_.bytes(); }
  [[nodiscard]] worker_pool& threads() override { return pool_; }

private:
  void layer(std::int64_t index, std::int64_t rows);
  void embed(std::int64_t rows);
  void normalise(const float* weight, std::int64_t rows);
  void product(const float* a, std::int64_t a_stride, const packed_matrix& w, float* c,
               std::int64_t c_stride, std::int64_t rows, bool add_to_c);
  void round_activations(const float* a, std::int64_t a_stride, const packed_matrix& w,
                         std::int64_t rows);
  void rotate_and_store(std::int64_t layer, std::int64_t rows);
  void attend(std::int64_t layer, std::int64_t rows);
  void store_keys_and_values(std::int64_t layer, std::int64_t row);
  [[nodiscard]] float* block_at(std::int64_t layer, std::int32_t block) const {
    return reinterpret_cast<float*>(cache_.data()) + layer * layer_stride_ + block * block_stride_;
  }

  struct row {
    const std::int32_t* blocks;
    std::int32_t token, position;
  };

  model_config config_;
  const kernel_table& kernels_;
  packed_weights weights_;
  worker_pool pool_;
  rope_tables rope_;
  std::int32_t max_context_;
  std::int64_t value_width_, head_stride_, block_stride_, layer_stride_;
  page_memory cache_;
  std::vector<row> rows_;
  std::vector<std::int64_t> wanted_; ///< rows whose logits are wanted
  std::vector<std::byte> rounded_; ///< activations in the weights' precision
  std::vector<float> hidden_, normed_, qkv_, mixed_, gate_up_, activated_, logits_, scratch_;
};

} // namespace millrace::model
